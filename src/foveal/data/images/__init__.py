"""What image datasets share: reading, augmentation, images held on the device, the source for classification."""
