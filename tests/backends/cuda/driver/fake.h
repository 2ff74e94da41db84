/* A driver without a device: the functions of libcuda that meshc calls, as the reference describes
   them. It keeps a log of calls, refuses what a driver refuses, holds device memory in host memory,
   and can be told to fail any call. A launch is logged with its arguments, and runs in the executor
   of emitted kernels when a test has given its entry there. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905, INVALID_CLUSTER = 912
};
enum { LIVE = 1024, NODES = 128, ARGUMENTS = 64, ARGUMENT_BYTES = 128, LAUNCH_FAILED = 719 };

/* As mc_machine.h has them. */
typedef struct {
    uint32_t blocks, threads, cluster, shared_bytes, schedule, late_copies, whole_grid, lint, seed;
} Launch;
typedef int (*Entry)(const Launch*, void** arguments, uint64_t* counts, char* message, size_t);

typedef struct {
    unsigned id;
    char pad[4];
    union { char pad[64]; unsigned dims[3]; int flag; } value;
} Attribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    void* stream;
    Attribute* attributes;
    unsigned count;
} Config;

typedef struct {
    char text[512]; /* for the log */
    Entry entry;
    Launch launch;
    int count;
    char arguments[ARGUMENTS][ARGUMENT_BYTES];
} Node;

/* An object of the driver; what its fields hold depends on its kind. */
typedef struct Object {
    char kind; /* c, m, f, b, s, e, g (graph), x (launchable graph) */
    char name[64];
    size_t bytes;
    void* memory;
    int shared, spread, capturing, nodes;
    Node* node; /* of streams that are captured and of graphs */
    struct Object* owner; /* of a stream that joined a capture, or an event in one: whose it is */
    struct Object* of; /* of an event: the stream */
    int launched, joined; /* of a stream that joined: its launches, and those that the owner waits for */
} Object;

/* What tests call, of which each process reads some from its environment. */
void fake_set(const char* name, long long value);
void fake_fail(const char* name, int after, int code);

#pragma GCC visibility push(hidden)

typedef struct { char name[64]; int count, sizes[ARGUMENTS]; Entry entry; } KnownKernel;
enum { KERNELS = 64 };

extern Object* live[LIVE];
extern KnownKernel kernels[KERNELS];
extern int fault_at_launch, fault, initialised, retained;
extern _Thread_local int current; /* contexts of the calling thread */
extern long long used; /* bytes of device memory */

long long setting(const char* name);
void say(const char* form, ...); /* to the log */

/* A call starts with one of these, and returns what it gives unless that is 0: in any state, once the
   driver is initialised, and in a current context. */
int enter(const char* name);
int refused(const char* name);
int refused_here(const char* name);
int leave(int code); /* the end of a call */

Object* made(char kind);
Object* known(void* handle, char kind);
int ended(void* handle, char kind); /* the end of a call that gives an object back */

/* The blocks of a cluster, and the code with which a configuration is refused. */
unsigned cluster_of(const Object* f, const Config* c, int* code);

#pragma GCC visibility pop

#define CHECK(refusal) do { int code_ = (refusal); if (code_) return code_; } while (0)
