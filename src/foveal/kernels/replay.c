/* Repeat the launches and allocations of a tape (tape.py), given the tensors of a new call.

   In Python the same takes several times as long as the driver needs to launch the kernels. replay.py compiles this
   file with the C compiler that Triton uses for its own launchers, and says what the arguments are.

   The kernels are nodes of a CUDA graph: one launch instead of ten. Layers of one shape share a tape, and in a training
   loop each of them gets the same addresses again and again. So a program has several graphs, which need no new
   addresses then. Kernels are launched one by one while the stream is captured into a graph of somebody else's, and
   where the driver refuses a graph. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <alloca.h>
#include <cuda.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 128 /* of a tensor map */
#define MOST (1 << 15) /* bytes of parameters, which are copied to the stack at every call */
#define GRAPHS 32 /* of a program */
#define NODES (1 << 13) /* of the graphs of all programs, which take memory of the GPU */

typedef CUresult (*Launch)(const CUlaunchConfig *, CUfunction, void **, void **);
typedef CUresult (*Replace)(CUtensorMap *, void *);
typedef CUresult (*Context)(CUcontext *);

typedef struct {
  CUresult (*create)(CUgraph *, unsigned int);
  CUresult (*add)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *);
  CUresult (*instantiate)(CUgraphExec *, CUgraph, unsigned long long);
  CUresult (*set)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
  CUresult (*launch)(CUgraphExec, CUstream);
  CUresult (*destroy_exec)(CUgraphExec);
  CUresult (*destroy)(CUgraph);
  CUresult (*capturing)(CUstream, CUstreamCaptureStatus *);
} Graphs;

typedef enum { CONSTANT, ADDRESS, MAP } Kind;

typedef struct {
  Kind kind;
  int base;       /* which tensor it points into */
  long long offset; /* bytes after the tensor's beginning */
  size_t at;      /* where its value is among those of all parameters */
} Parameter;

typedef struct {
  CUlaunchConfig config;
  CUfunction function;
  int first;         /* number of its first parameter */
  size_t begin, end; /* of the values of its parameters */
} Kernel;

typedef struct {
  CUgraph graph;
  CUgraphExec exec;
  CUgraphNode *node;        /* of each kernel */
  char *values;             /* that the nodes have */
  unsigned long long used;  /* number of the last call */
} Graph;

typedef struct {
  PyObject_HEAD
  vectorcallfunc call;
  Launch launch;
  Replace replace;
  Context context;
  PyObject *allocate;  /* of (size, strides, dtype) */
  PyObject *outputs;   /* a tuple of such arguments, or None */
  PyObject *scratch;   /* such arguments, or None */
  Py_ssize_t inputs, bases;
  int kernels, parameters;
  Kernel *kernel;
  Parameter *parameter;
  char *values; /* of all parameters; addresses and maps are those of the last call */
  size_t bytes;
  Graphs graphs; /* without functions if the driver has none */
  Graph graph[GRAPHS];
  int made, most, last; /* number of graphs, its limit, and the one that was launched last */
  unsigned long long calls;
  pthread_mutex_t lock; /* of the graphs */
} Program;

static PyObject *data_ptr; /* the name */

static int address_of(PyObject *tensor, uint64_t *address) {
  PyObject *number = PyObject_CallMethodNoArgs(tensor, data_ptr);
  if (!number) return -1;
  *address = PyLong_AsUnsignedLongLong(number);
  Py_DECREF(number);
  return PyErr_Occurred() ? -1 : 0;
}

static PyObject *allocated(Program *self, PyObject *arguments, uint64_t *address) {
  PyObject *tensor = PyObject_Call(self->allocate, arguments, NULL);
  if (tensor && address_of(tensor, address) < 0) Py_CLEAR(tensor);
  return tensor;
}

static CUresult launch_each(const Program *self, CUstream stream, void **pointers) {
  CUresult status = CUDA_SUCCESS;
  for (int i = 0; i < self->kernels && status == CUDA_SUCCESS; i++) {
    CUlaunchConfig config = self->kernel[i].config;
    config.hStream = stream;
    status = self->launch(&config, self->kernel[i].function, pointers + self->kernel[i].first, NULL);
  }
  return status;
}

static CUDA_KERNEL_NODE_PARAMS node_params(const Kernel *kernel, void **pointers) {
  const CUlaunchConfig *c = &kernel->config;
  CUDA_KERNEL_NODE_PARAMS params = {0};
  params.func = kernel->function;
  params.gridDimX = c->gridDimX, params.gridDimY = c->gridDimY, params.gridDimZ = c->gridDimZ;
  params.blockDimX = c->blockDimX, params.blockDimY = c->blockDimY, params.blockDimZ = c->blockDimZ;
  params.sharedMemBytes = c->sharedMemBytes;
  params.kernelParams = pointers + kernel->first;
  return params;
}

static long nodes; /* of all graphs */

static void destroy_graph(const Program *self, Graph *graph) {
  if (graph->exec) self->graphs.destroy_exec(graph->exec);
  if (graph->graph) self->graphs.destroy(graph->graph);
  free(graph->node);
  free(graph->values);
  memset(graph, 0, sizeof(Graph));
  __atomic_sub_fetch(&nodes, self->kernels, __ATOMIC_RELAXED);
}

/* A graph in an empty place: one kernel after the other. */
static CUresult make_graph(const Program *self, Graph *graph, const char *values, void **pointers) {
  __atomic_add_fetch(&nodes, self->kernels, __ATOMIC_RELAXED);
  graph->node = calloc(self->kernels, sizeof(CUgraphNode));
  graph->values = malloc(self->bytes + 1);
  if (!graph->node || !graph->values) return CUDA_ERROR_OUT_OF_MEMORY;
  memcpy(graph->values, values, self->bytes);
  CUresult status = self->graphs.create(&graph->graph, 0);
  for (int i = 0; i < self->kernels && status == CUDA_SUCCESS; i++) {
    CUDA_KERNEL_NODE_PARAMS params = node_params(&self->kernel[i], pointers);
    const CUgraphNode *before = i ? &graph->node[i - 1] : NULL;
    status = self->graphs.add(&graph->node[i], graph->graph, before, i > 0, &params);
  }
  return status == CUDA_SUCCESS ? self->graphs.instantiate(&graph->exec, graph->graph, 0) : status;
}

/* Give the nodes other values. A launch that is under way keeps those that it was launched with. */
static CUresult change_graph(const Program *self, Graph *graph, const char *values, void **pointers) {
  CUresult status = CUDA_SUCCESS;
  for (int i = 0; i < self->kernels && status == CUDA_SUCCESS; i++) {
    const Kernel *kernel = &self->kernel[i];
    size_t size = kernel->end - kernel->begin;
    if (!memcmp(graph->values + kernel->begin, values + kernel->begin, size)) continue;
    CUDA_KERNEL_NODE_PARAMS params = node_params(kernel, pointers);
    status = self->graphs.set(graph->exec, graph->node[i], &params);
    memcpy(graph->values + kernel->begin, values + kernel->begin, size);
  }
  return status;
}

/* The graph that has these values; otherwise a new one, or the one that was not used for the longest time; or -1. */
static int choose_graph(const Program *self, const char *values) {
  int oldest = self->made ? 0 : -1;
  for (int k = 1; k <= self->made; k++) {
    int i = (self->last + k) % self->made; /* as a rule, layers follow each other in the same order */
    if (!memcmp(self->graph[i].values, values, self->bytes)) return i;
    if (self->graph[i].used < self->graph[oldest].used) oldest = i;
  }
  int more = self->made < self->most && __atomic_load_n(&nodes, __ATOMIC_RELAXED) + self->kernels <= NODES;
  return more ? self->made : oldest;
}

/* A graph that has these values; NULL if there is none, and the driver makes none. */
static Graph *ready_graph(Program *self, const char *values, void **pointers) {
  int i = choose_graph(self, values);
  if (i < 0) return NULL;
  Graph *graph = &self->graph[i];
  if (i == self->made) {
    if (make_graph(self, graph, values, pointers) == CUDA_SUCCESS) {
      self->made++;
    } else {
      destroy_graph(self, graph);
      self->most = self->made;
      return NULL;
    }
  } else if (change_graph(self, graph, values, pointers) != CUDA_SUCCESS) { /* some nodes may have other values */
    destroy_graph(self, graph);
    *graph = self->graph[--self->made]; /* the last one takes its place */
    memset(&self->graph[self->made], 0, sizeof(Graph));
    return NULL;
  }
  self->last = i;
  graph->used = ++self->calls;
  return graph;
}

static CUresult launch_graph(Program *self, CUstream stream, const char *values, void **pointers) {
  CUstreamCaptureStatus capture;
  if (self->graphs.capturing(stream, &capture) != CUDA_SUCCESS || capture != CU_STREAM_CAPTURE_STATUS_NONE)
    return launch_each(self, stream, pointers);
  pthread_mutex_lock(&self->lock);
  Graph *graph = ready_graph(self, values, pointers);
  CUresult status = graph ? self->graphs.launch(graph->exec, stream) : CUDA_SUCCESS;
  pthread_mutex_unlock(&self->lock);
  return graph ? status : launch_each(self, stream, pointers);
}

/* program(tensors, stream): the results. None, and nothing is done, if an address is not a multiple of 16 bytes, or if
   this thread has not used the GPU yet. */
static PyObject *run(PyObject *object, PyObject *const *args, size_t count, PyObject *names) {
  Program *self = (Program *)object;
  if (PyVectorcall_NARGS(count) != 2 || names) {
    PyErr_SetString(PyExc_TypeError, "expected tensors and a stream");
    return NULL;
  }
  CUstream stream = (CUstream)(uintptr_t)PyLong_AsUnsignedLongLong(args[1]);
  if (PyErr_Occurred()) return NULL;
  PyObject *tensors = PySequence_Fast(args[0], "expected a sequence of tensors");
  if (!tensors) return NULL;
  PyObject *results = NULL, *scratch = NULL;
  if (PySequence_Fast_GET_SIZE(tensors) != self->inputs) {
    PyErr_Format(PyExc_ValueError, "expected %zd tensors", self->inputs);
    goto failed;
  }

  uint64_t *bases = alloca(self->bases * sizeof(uint64_t) + 1), bits = 0;
  Py_ssize_t known = 0;
  for (; known < self->inputs; known++) {
    PyObject *tensor = PySequence_Fast_GET_ITEM(tensors, known);
    bases[known] = 0;
    if (tensor != Py_None && address_of(tensor, &bases[known]) < 0) goto failed;
    bits |= bases[known];
  }
  CUcontext current = NULL;
  if (bits & 15 || self->context(&current) != CUDA_SUCCESS || !current) {
    Py_DECREF(tensors);
    Py_RETURN_NONE;
  }
  Py_ssize_t wanted = PyTuple_GET_SIZE(self->outputs);
  results = PyList_New(wanted);
  if (!results) goto failed;
  for (Py_ssize_t i = 0; i < wanted; i++) {
    PyObject *arguments = PyTuple_GET_ITEM(self->outputs, i), *tensor = Py_NewRef(Py_None);
    if (arguments != Py_None) {
      Py_DECREF(tensor);
      tensor = allocated(self, arguments, &bases[known++]);
      if (!tensor) goto failed;
    }
    PyList_SET_ITEM(results, i, tensor);
  }
  if (self->scratch != Py_None) { /* kept until all is launched */
    scratch = allocated(self, self->scratch, &bases[known++]);
    if (!scratch) goto failed;
  }

  CUresult status = CUDA_SUCCESS;
  char *memory = alloca(self->bytes + ALIGN);
  char *values = (char *)(((uintptr_t)memory + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
  void **pointers = alloca(self->parameters * sizeof(void *) + 1);
  for (int i = 0; i < self->parameters; i++) {
    const Parameter *p = &self->parameter[i];
    pointers[i] = values + p->at;
    if (p->kind == CONSTANT) continue;
    uint64_t address = bases[p->base] + p->offset;
    if (p->kind == ADDRESS) {
      *(uint64_t *)(self->values + p->at) = address;
      continue;
    }
    CUtensorMap *map = (CUtensorMap *)(self->values + p->at);
    uint64_t *last = (uint64_t *)(map + 1); /* the address in it */
    if (*last != address) {
      status = self->replace(map, (void *)(uintptr_t)address);
      if (status != CUDA_SUCCESS) goto refused;
      *last = address;
    }
  }
  memcpy(values, self->values, self->bytes); /* another thread may be next, as soon as this one waits for the driver */
  Py_BEGIN_ALLOW_THREADS
  status = self->graphs.create && self->kernels ? launch_graph(self, stream, values, pointers)
                                                : launch_each(self, stream, pointers);
  Py_END_ALLOW_THREADS
refused:
  if (status != CUDA_SUCCESS) {
    PyErr_Format(PyExc_RuntimeError, "CUDA refused to launch a kernel: error %d", (int)status);
    goto failed;
  }
  Py_XDECREF(scratch);
  Py_DECREF(tensors);
  return results;

failed:
  Py_XDECREF(scratch);
  Py_XDECREF(results);
  Py_DECREF(tensors);
  return NULL;
}

/* One parameter: bytes, (base, offset), or (base, offset, map). Returns its size, -1 after an error. */
static Py_ssize_t parse(PyObject *item, Py_ssize_t bases, Parameter *parameter, const char **value) {
  if (PyBytes_Check(item)) {
    parameter->kind = CONSTANT;
    *value = PyBytes_AS_STRING(item);
    return PyBytes_GET_SIZE(item);
  }
  PyObject *map = NULL;
  if (!PyArg_ParseTuple(item, "iL|S", &parameter->base, &parameter->offset, &map)) return -1;
  if (parameter->base < 0 || parameter->base >= bases || (map && PyBytes_GET_SIZE(map) != sizeof(CUtensorMap))) {
    PyErr_SetString(PyExc_ValueError, "a parameter of no tensor, or a map of another size");
    return -1;
  }
  parameter->kind = map ? MAP : ADDRESS;
  *value = map ? PyBytes_AS_STRING(map) : NULL;
  return map ? sizeof(CUtensorMap) + sizeof(uint64_t) : sizeof(uint64_t); /* a map is followed by the address in it */
}

/* Where the values of all parameters are; and the values themselves, if there is memory for them already. */
static int lay_out(Program *self, PyObject *kernels) {
  int number = 0;
  self->bytes = 0;
  for (int i = 0; i < self->kernels; i++) {
    Kernel *kernel = &self->kernel[i];
    CUlaunchConfig *c = &kernel->config;
    unsigned long long function;
    PyObject *parameters;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(kernels, i), "KIIIIIO!", &function, &c->gridDimX, &c->gridDimY, &c->gridDimZ,
                          &c->blockDimX, &c->sharedMemBytes, &PyTuple_Type, &parameters))
      return -1;
    c->blockDimY = c->blockDimZ = 1;
    kernel->function = (CUfunction)(uintptr_t)function;
    kernel->first = number;
    kernel->begin = self->bytes;
    for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(parameters); j++, number++) {
      Parameter *parameter = &self->parameter[number];
      const char *value = NULL;
      Py_ssize_t size = parse(PyTuple_GET_ITEM(parameters, j), self->bases, parameter, &value);
      if (size < 0) return -1;
      size_t align = parameter->kind == MAP ? ALIGN : sizeof(uint64_t);
      parameter->at = (self->bytes + align - 1) / align * align;
      self->bytes = parameter->at + size;
      if (self->values && value)
        memcpy(self->values + parameter->at, value, parameter->kind == MAP ? sizeof(CUtensorMap) : (size_t)size);
    }
    kernel->end = self->bytes;
  }
  if (self->bytes > MOST) {
    PyErr_SetString(PyExc_ValueError, "too many parameters");
    return -1;
  }
  return 0;
}

static int fill(Program *self, PyObject *kernels) {
  self->kernels = (int)PyTuple_GET_SIZE(kernels);
  for (int i = 0; i < self->kernels; i++)
    self->parameters += (int)PyTuple_GET_SIZE(PyTuple_GET_ITEM(PyTuple_GET_ITEM(kernels, i), 6));
  self->kernel = PyMem_Calloc(self->kernels + 1, sizeof(Kernel));
  self->parameter = PyMem_Calloc(self->parameters + 1, sizeof(Parameter));
  if (!self->kernel || !self->parameter) {
    PyErr_NoMemory();
    return -1;
  }
  if (lay_out(self, kernels) < 0) return -1;
  if (posix_memalign((void **)&self->values, ALIGN, self->bytes + 1)) {
    PyErr_NoMemory();
    return -1;
  }
  memset(self->values, 0, self->bytes + 1);
  return lay_out(self, kernels);
}

/* Addresses of the functions of Graphs, or none. */
static int read_functions(PyObject *addresses, Graphs *graphs) {
  Py_ssize_t count = PyTuple_GET_SIZE(addresses);
  uint64_t values[sizeof(Graphs) / sizeof(void *)] = {0};
  if (count && (size_t)count != sizeof(values) / sizeof(*values)) {
    PyErr_Format(PyExc_ValueError, "expected no functions of graphs or all, not %zd", count);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; i++) values[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(addresses, i));
  memcpy(graphs, values, sizeof(Graphs));
  return PyErr_Occurred() ? -1 : 0;
}

static void free_program(Program *self) {
  for (int i = 0; i < self->made; i++) destroy_graph(self, &self->graph[i]);
  pthread_mutex_destroy(&self->lock);
  Py_XDECREF(self->allocate);
  Py_XDECREF(self->outputs);
  Py_XDECREF(self->scratch);
  PyMem_Free(self->kernel);
  PyMem_Free(self->parameter);
  free(self->values);
  Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Program(launch, replace, context, graphs, allocate, inputs, outputs, scratch, kernels), see replay.py */
static PyObject *new_program(PyTypeObject *type, PyObject *args, PyObject *names) {
  unsigned long long launch, replace, context;
  PyObject *graphs, *allocate, *outputs, *scratch, *kernels;
  Py_ssize_t inputs;
  if (!PyArg_ParseTuple(args, "KKKO!OnO!OO!", &launch, &replace, &context, &PyTuple_Type, &graphs, &allocate, &inputs,
                        &PyTuple_Type, &outputs, &scratch, &PyTuple_Type, &kernels))
    return NULL;
  Program *self = (Program *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  pthread_mutex_init(&self->lock, NULL);
  self->call = run;
  self->most = GRAPHS;
  self->launch = (Launch)(uintptr_t)launch;
  self->replace = (Replace)(uintptr_t)replace;
  self->context = (Context)(uintptr_t)context;
  self->allocate = Py_NewRef(allocate);
  self->outputs = Py_NewRef(outputs);
  self->scratch = Py_NewRef(scratch);
  self->inputs = inputs;
  self->bases = inputs + (scratch != Py_None);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(outputs); i++) self->bases += PyTuple_GET_ITEM(outputs, i) != Py_None;
  if (read_functions(graphs, &self->graphs) < 0 || fill(self, kernels) < 0) {
    Py_DECREF(self);
    return NULL;
  }
  return (PyObject *)self;
}

static PyTypeObject ProgramType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "foveal_replay.Program",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_program,
    .tp_dealloc = (destructor)free_program,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Program, call),
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "foveal_replay", NULL, -1, NULL};

PyMODINIT_FUNC PyInit_foveal_replay(void) {
  data_ptr = PyUnicode_InternFromString("data_ptr");
  if (!data_ptr || PyType_Ready(&ProgramType) < 0) return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (!module || PyModule_AddObjectRef(module, "Program", (PyObject *)&ProgramType) < 0) return NULL;
  return module;
}
