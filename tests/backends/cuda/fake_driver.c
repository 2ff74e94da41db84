/* A driver without a device: the functions of libcuda that meshc calls, as the reference describes
   them. It keeps a log of calls, refuses what a driver refuses, holds device memory in host memory,
   and can be told to fail any call. A launch is logged with its arguments, and runs in the executor
   of emitted kernels when a test has given its entry there. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500,
    CAPTURE_UNSUPPORTED = 900, INVALID_CLUSTER = 912
};
enum { LIVE = 1024, NODES = 128, ARGUMENTS = 32, ARGUMENT_BYTES = 128, LAUNCH_FAILED = 719 };

/* As mc_executor.h has them. */
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
typedef struct {
    char kind; /* c, m, f, b, s, e, g (graph), x (launchable graph) */
    char name[64];
    size_t bytes;
    void* memory;
    int shared, spread, capturing, nodes;
    Node* node; /* of streams that are captured and of graphs */
} Object;

static Object* live[LIVE];
static char log_text[1 << 20];
static size_t log_end;
static struct { char name[64]; int after, code; } failing;
static int fault_at_launch, fault, initialised, retained, current;
/* Settings by name. */
static struct { const char* name; long long value; } settings[] = {
    {"devices", 1}, {"major", 9}, {"minor", 0}, {"version", 13000}, {"clusters", 33},
    {"blocks", 2}, {"memory", 1 << 26}, {"loads", 1},
};
static struct { char name[64]; int count, sizes[ARGUMENTS]; Entry entry; } kernels[64];
static long long used;

static long long setting(const char* name) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!strcmp(settings[i].name, name)) return settings[i].value;
    abort();
}

static void say(const char* form, ...) {
    va_list all;
    va_start(all, form);
    log_end += vsnprintf(log_text + log_end, sizeof log_text - log_end, form, all);
    va_end(all);
    if (log_end >= sizeof log_text - 4096) abort();
}

static void drop(int i) {
    if (live[i]) {
        free(live[i]->memory);
        free(live[i]->node);
    }
    free(live[i]);
    live[i] = 0;
}

/* ---- What a test says and asks ---- */

void fake_reset(void) {
    for (int i = 0; i < LIVE; i++) {
        drop(i);
    }
    memset(log_text, 0, sizeof log_text);
    memset(&failing, 0, sizeof failing);
    memset(kernels, 0, sizeof kernels);
    log_end = fault_at_launch = fault = initialised = retained = current = 0;
    used = 0;
    static const long long first[] = {1, 9, 0, 13000, 33, 2, 1 << 26, 1};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) settings[i].value = first[i];
}

void fake_set(const char* name, long long value) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!strcmp(settings[i].name, name)) { settings[i].value = value; return; }
    abort();
}

/* The call of `name` (any call if empty) that follows `after` others of that name gives `code`. */
void fake_fail(const char* name, int after, int code) {
    snprintf(failing.name, sizeof failing.name, "%s", name);
    failing.after = after;
    failing.code = code;
}

/* Behind the next launch every call that waits, and then every call, gives `code`. */
void fake_fault(int code) { fault_at_launch = code; }

/* The sizes of a kernel's parameters, and where it runs (or null). */
void fake_kernel(const char* name, int count, const int* sizes, Entry entry) {
    for (int i = 0; i < 64; i++)
        if (!kernels[i].name[0] || !strcmp(kernels[i].name, name)) {
            snprintf(kernels[i].name, sizeof kernels[i].name, "%s", name);
            kernels[i].count = count;
            kernels[i].entry = entry;
            memcpy(kernels[i].sizes, sizes, count * sizeof *sizes);
            return;
        }
    abort();
}

const char* fake_log(void) { return log_text; }

int fake_live(void) {
    int count = retained + current;
    for (int i = 0; i < LIVE; i++) count += live[i] && live[i]->kind != 'f';
    return count;
}

/* ---- Common to all calls ---- */

static int enter(const char* name) {
    say("%s", name);
    int hit = failing.code && (!failing.name[0] || !strcmp(failing.name, name));
    if (hit && failing.after-- == 0) {
        int code = failing.code;
        failing.code = 0;
        say(" -> %d\n", code);
        return code;
    }
    if (fault) say(" -> %d\n", fault);
    return fault;
}

static int leave(int code) {
    if (code) say(" -> %d", code);
    say("\n");
    return code;
}

static int refused(const char* name) {
    int code = enter(name);
    if (code) return code;
    if (!initialised) return leave(NOT_INITIALIZED);
    return 0;
}

/* For calls that need a current context. */
static int refused_here(const char* name) {
    int code = refused(name);
    if (code) return code;
    return current ? 0 : leave(INVALID_CONTEXT);
}

static Object* made(char kind) {
    for (int i = 1; i < LIVE; i++)
        if (!live[i]) {
            live[i] = calloc(1, sizeof(Object));
            live[i]->kind = kind;
            return live[i];
        }
    abort();
}

static Object* known(void* handle, char kind) {
    for (int i = 0; i < LIVE; i++)
        if (live[i] && live[i] == handle && live[i]->kind == kind) return live[i];
    return 0;
}

static int ended(void* handle, char kind) {
    for (int i = 0; i < LIVE; i++)
        if (live[i] && live[i] == handle && live[i]->kind == kind) {
            drop(i);
            return leave(OK);
        }
    return leave(INVALID_HANDLE);
}

/* ---- The driver ---- */

#define CHECK(refusal) do { int code_ = (refusal); if (code_) return code_; } while (0)

/* What a test of a whole process says: FAKE_DRIVER_SET=name=value, FAKE_DRIVER_FAIL=name=code. */
static void listen(void) {
    char name[64];
    long long value;
    const char* set = getenv("FAKE_DRIVER_SET");
    const char* failure = getenv("FAKE_DRIVER_FAIL");
    if (set && sscanf(set, "%63[^=]=%lld", name, &value) == 2) fake_set(name, value);
    if (failure && sscanf(failure, "%63[^=]=%lld", name, &value) == 2) fake_fail(name, 0, (int)value);
}

int cuInit(unsigned flags) {
    (void)flags;
    listen();
    CHECK(enter("cuInit"));
    initialised = 1;
    return leave(OK);
}

int cuDriverGetVersion(int* version) {
    CHECK(enter("cuDriverGetVersion"));
    *version = (int)setting("version");
    return leave(OK);
}

int cuGetErrorName(int code, const char** name) {
    static char text[32];
    if (code == 12345) return INVALID_VALUE;
    snprintf(text, sizeof text, "CUDA_ERROR_%d", code);
    *name = text;
    return OK;
}

int cuGetErrorString(int code, const char** words) {
    if (code == 12345) return INVALID_VALUE;
    *words = "words of the driver";
    return OK;
}

int cuDeviceGetCount(int* count) {
    CHECK(refused("cuDeviceGetCount"));
    *count = (int)setting("devices");
    return leave(OK);
}

int cuDeviceGet(int* device, int index) {
    CHECK(refused("cuDeviceGet"));
    if (index < 0 || index >= setting("devices")) return leave(INVALID_DEVICE);
    *device = index;
    return leave(OK);
}

int cuDeviceGetName(char* name, int size, int device) {
    CHECK(refused("cuDeviceGetName"));
    snprintf(name, size, "Fake GPU %d", device);
    return leave(OK);
}

int cuDeviceGetAttribute(int* value, int number, int device) {
    CHECK(refused("cuDeviceGetAttribute"));
    int last = device == setting("devices") - 1;
    switch (number) {
        case 16: *value = 132; break;
        case 38: *value = 60 << 20; break;
        /* Of several devices the last is the one that is set, the others are older. */
        case 75: *value = last ? (int)setting("major") : 8; break;
        case 76: *value = last ? (int)setting("minor") : 0; break;
        case 97: *value = 232448; break;
        default: return leave(INVALID_VALUE);
    }
    return leave(OK);
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
    (void)device;
    CHECK(refused("cuDeviceTotalMem_v2"));
    *bytes = setting("memory");
    return leave(OK);
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
    CHECK(refused("cuDevicePrimaryCtxRetain"));
    retained++;
    say(" %d", device);
    *context = (void*)0x1000;
    return leave(OK);
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    CHECK(refused("cuDevicePrimaryCtxRelease_v2"));
    (void)device;
    if (!retained) return leave(INVALID_CONTEXT);
    retained--;
    return leave(OK);
}

int cuCtxPushCurrent_v2(void* context) {
    CHECK(refused("cuCtxPushCurrent_v2"));
    if (context != (void*)0x1000 || !retained) return leave(INVALID_CONTEXT);
    current++;
    return leave(OK);
}

int cuCtxPopCurrent_v2(void** context) {
    CHECK(refused_here("cuCtxPopCurrent_v2"));
    *context = (void*)0x1000;
    current--;
    return leave(OK);
}

int cuModuleLoadData(void** module, const void* image) {
    CHECK(refused_here("cuModuleLoadData"));
    if (memcmp(image, "\177ELF", 4)) return leave(INVALID_IMAGE);
    *module = made('m');
    return leave(OK);
}

int cuModuleUnload(void* module) {
    CHECK(refused_here("cuModuleUnload"));
    return ended(module, 'm');
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
    CHECK(refused_here("cuModuleGetFunction"));
    if (!known(module, 'm')) return leave(INVALID_HANDLE);
    Object* f = made('f');
    snprintf(f->name, sizeof f->name, "%s", name);
    f->shared = 48 * 1024;
    *function = f;
    say(" %s", name);
    return leave(OK);
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
    CHECK(refused_here("cuFuncSetAttribute"));
    Object* f = known(function, 'f');
    if (!f) return leave(INVALID_HANDLE);
    say(" %s %d=%d", f->name, attribute, value);
    if (attribute == 8 && value <= 232448) f->shared = value;
    else if (attribute == 14) f->spread = value;
    else return leave(INVALID_VALUE);
    return leave(OK);
}

/* The blocks of a cluster, or 0 for a configuration that is refused with `code`. */
static unsigned cluster_of(const Object* f, const Config* c, int* code) {
    unsigned cluster = 1;
    for (unsigned i = 0; i < c->count; i++)
        if (c->attributes[i].id == 4) cluster = c->attributes[i].value.dims[0];
    *code = (int)c->shared > f->shared ? INVALID_VALUE : OK;
    if (c->grid[0] % cluster || cluster > 16 || (cluster > 8 && !f->spread)) *code = INVALID_CLUSTER;
    return cluster;
}

int cuOccupancyMaxActiveClusters(int* count, void* function, const Config* config) {
    CHECK(refused_here("cuOccupancyMaxActiveClusters"));
    Object* f = known(function, 'f');
    if (!f) return leave(INVALID_HANDLE);
    int code;
    say(" %s cluster=%u shared=%u", f->name, cluster_of(f, config, &code), config->shared);
    *count = (int)setting("clusters");
    return leave(code);
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, void* function, int threads,
                                                size_t shared) {
    CHECK(refused_here("cuOccupancyMaxActiveBlocksPerMultiprocessor"));
    Object* f = known(function, 'f');
    if (!f) return leave(INVALID_HANDLE);
    say(" %s threads=%d shared=%zu", f->name, threads, shared);
    *count = (int)setting("blocks");
    return leave(OK);
}

int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    CHECK(refused_here("cuMemGetInfo_v2"));
    *free_bytes = setting("memory") - used;
    *total = setting("memory");
    return leave(OK);
}

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    CHECK(refused_here("cuMemAlloc_v2"));
    say(" %zu", bytes);
    if (!bytes) return leave(INVALID_VALUE);
    if (used + (long long)bytes > setting("memory")) return leave(OUT_OF_MEMORY);
    Object* b = made('b');
    b->bytes = bytes;
    b->memory = malloc(bytes);
    memset(b->memory, 0xa5, bytes);
    used += bytes;
    *address = (uintptr_t)b->memory;
    return leave(OK);
}

static Object* buffer_at(uint64_t address, size_t bytes) {
    for (int i = 0; i < LIVE; i++) {
        Object* b = live[i];
        if (b && b->kind == 'b' && address >= (uintptr_t)b->memory &&
            address + bytes <= (uintptr_t)b->memory + b->bytes)
            return b;
    }
    return 0;
}

int cuMemFree_v2(uint64_t address) {
    CHECK(refused_here("cuMemFree_v2"));
    Object* b = buffer_at(address, 0);
    if (!b || (uintptr_t)b->memory != address) return leave(INVALID_VALUE);
    used -= b->bytes;
    return ended(b, 'b');
}

static int copied(uint64_t address, size_t bytes, void* stream) {
    Object* s = known(stream, 's');
    say(" %zu", bytes);
    if (stream && !s) return INVALID_HANDLE;
    if (s && s->capturing) return CAPTURE_UNSUPPORTED;
    return buffer_at(address, bytes) ? OK : INVALID_VALUE;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
    CHECK(refused_here("cuMemcpyHtoDAsync_v2"));
    int code = copied(to, bytes, stream);
    if (!code) memcpy((void*)(uintptr_t)to, from, bytes);
    return leave(code);
}

int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
    CHECK(refused_here("cuMemcpyDtoHAsync_v2"));
    int code = copied(from, bytes, stream);
    if (!code) memcpy(to, (void*)(uintptr_t)from, bytes);
    return leave(code);
}

int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void* stream) {
    CHECK(refused_here("cuMemsetD8Async"));
    int code = copied(to, bytes, stream);
    if (!code) memset((void*)(uintptr_t)to, byte, bytes);
    return leave(code);
}

static Node node_of(const Object* f, const Config* c, void** arguments) {
    Node node = {0};
    int programmatic = 0, cooperative = 0;
    node.launch = (Launch){c->grid[0], c->block[0], 1, c->shared, 0, 0, 0, 0, 1};
    for (unsigned i = 0; i < c->count; i++) {
        if (c->attributes[i].id == 4) node.launch.cluster = c->attributes[i].value.dims[0];
        if (c->attributes[i].id == 6) programmatic = c->attributes[i].value.flag;
        if (c->attributes[i].id == 2) cooperative = c->attributes[i].value.flag;
    }
    node.launch.whole_grid = cooperative;
    size_t size = sizeof node.text;
    size_t at = snprintf(node.text, size, "%s grid=%u block=%u cluster=%u shared=%u", f->name,
                         c->grid[0], c->block[0], node.launch.cluster, c->shared);
    if (programmatic) at += snprintf(node.text + at, size - at, " programmatic");
    if (cooperative) at += snprintf(node.text + at, size - at, " cooperative");
    for (int i = 0; i < 64; i++) {
        if (strcmp(kernels[i].name, f->name)) continue;
        node.entry = kernels[i].entry;
        node.count = kernels[i].count;
        for (int n = 0; n < node.count; n++) {
            memcpy(node.arguments[n], arguments[n], kernels[i].sizes[n]);
            if (at + 2 * ARGUMENT_BYTES >= size) continue;
            at += snprintf(node.text + at, size - at, " ");
            for (int b = 0; b < kernels[i].sizes[n]; b++)
                at += snprintf(node.text + at, size - at, "%02x",
                               ((unsigned char*)arguments[n])[b]);
        }
    }
    return node;
}

static void run(Node* node) {
    void* arguments[ARGUMENTS];
    uint64_t counts[16];
    char message[512];
    for (int n = 0; n < node->count; n++) arguments[n] = node->arguments[n];
    if (node->entry && node->entry(&node->launch, arguments, counts, message, sizeof message))
        fault = LAUNCH_FAILED;
    if (fault_at_launch) fault = fault_at_launch;
}

int cuLaunchKernelEx(const Config* config, void* function, void** arguments, void** extra) {
    CHECK(refused_here("cuLaunchKernelEx"));
    Object* f = known(function, 'f');
    Object* s = known(config->stream, 's');
    if (!f || (config->stream && !s)) return leave(INVALID_HANDLE);
    if (extra || config->grid[1] != 1 || config->grid[2] != 1 || config->block[1] != 1 ||
        config->block[2] != 1 || config->block[0] > 1024)
        return leave(INVALID_VALUE);
    int code;
    cluster_of(f, config, &code);
    if (code) return leave(code);
    Node node = node_of(f, config, arguments);
    say(" %s", node.text);
    if (s && s->capturing) {
        if (s->nodes == NODES) abort();
        s->node[s->nodes++] = node;
    } else {
        run(&node);
    }
    return leave(OK);
}

int cuStreamCreate(void** stream, unsigned flags) {
    CHECK(refused_here("cuStreamCreate"));
    if (flags > 1) return leave(INVALID_VALUE);
    *stream = made('s');
    return leave(OK);
}

int cuStreamDestroy_v2(void* stream) {
    CHECK(refused_here("cuStreamDestroy_v2"));
    return ended(stream, 's');
}

int cuStreamSynchronize(void* stream) {
    CHECK(refused_here("cuStreamSynchronize"));
    Object* s = known(stream, 's');
    if (stream && !s) return leave(INVALID_HANDLE);
    return leave(s && s->capturing ? CAPTURE_UNSUPPORTED : OK);
}

int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
    CHECK(refused_here("cuStreamWaitEvent"));
    if (flags || !known(stream, 's') || !known(event, 'e')) return leave(INVALID_HANDLE);
    return leave(OK);
}

int cuStreamBeginCapture_v2(void* stream, int mode) {
    CHECK(refused_here("cuStreamBeginCapture_v2"));
    Object* s = known(stream, 's');
    /* The default stream cannot be captured. */
    if (!s || s->capturing || mode != 1) return leave(CAPTURE_UNSUPPORTED);
    s->capturing = 1;
    s->nodes = 0;
    if (!s->node) s->node = malloc(NODES * sizeof(Node));
    return leave(OK);
}

static Object* copy_of(const Object* from, char kind) {
    Object* to = made(kind);
    to->nodes = from->nodes;
    to->node = malloc(NODES * sizeof(Node));
    memcpy(to->node, from->node, from->nodes * sizeof(Node));
    return to;
}

int cuStreamEndCapture(void* stream, void** graph) {
    CHECK(refused_here("cuStreamEndCapture"));
    Object* s = known(stream, 's');
    if (!s || !s->capturing) return leave(CAPTURE_UNSUPPORTED);
    s->capturing = 0;
    *graph = copy_of(s, 'g');
    return leave(OK);
}

int cuGraphInstantiateWithFlags(void** launchable, void* graph, unsigned long long flags) {
    CHECK(refused_here("cuGraphInstantiateWithFlags"));
    Object* g = known(graph, 'g');
    if (!g || flags) return leave(INVALID_HANDLE);
    *launchable = copy_of(g, 'x');
    return leave(OK);
}

int cuGraphLaunch(void* launchable, void* stream) {
    CHECK(refused_here("cuGraphLaunch"));
    Object* x = known(launchable, 'x');
    if (!x || !known(stream, 's')) return leave(INVALID_HANDLE);
    for (int i = 0; i < x->nodes; i++) {
        say(" [%s]", x->node[i].text);
        run(&x->node[i]);
    }
    return leave(OK);
}

int cuGraphDestroy(void* graph) {
    CHECK(refused_here("cuGraphDestroy"));
    return ended(graph, 'g');
}

int cuGraphExecDestroy(void* launchable) {
    CHECK(refused_here("cuGraphExecDestroy"));
    return ended(launchable, 'x');
}

int cuEventCreate(void** event, unsigned flags) {
    CHECK(refused_here("cuEventCreate"));
    if (flags) return leave(INVALID_VALUE);
    *event = made('e');
    return leave(OK);
}

int cuEventRecord(void* event, void* stream) {
    CHECK(refused_here("cuEventRecord"));
    Object* e = known(event, 'e');
    if (!e || (stream && !known(stream, 's'))) return leave(INVALID_HANDLE);
    static size_t clock;
    e->bytes = ++clock;
    return leave(OK);
}

int cuEventSynchronize(void* event) {
    CHECK(refused_here("cuEventSynchronize"));
    return leave(known(event, 'e') ? OK : INVALID_HANDLE);
}

/* One millisecond lies between neighbouring records. */
int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    CHECK(refused_here("cuEventElapsedTime"));
    Object *a = known(from, 'e'), *b = known(to, 'e');
    if (!a || !b || !a->bytes || !b->bytes) return leave(INVALID_HANDLE);
    *milliseconds = (float)((double)b->bytes - (double)a->bytes);
    return leave(OK);
}

int cuEventDestroy_v2(void* event) {
    CHECK(refused_here("cuEventDestroy_v2"));
    return ended(event, 'e');
}
