"""Gates on feature maps (squeeze and excitation, CBAM): plain form, fused form, its Triton kernels and their launch."""
