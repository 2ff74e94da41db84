/* Devices, contexts, modules and memory. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        case 16: *value = (int)setting("multiprocessors"); break;
        case 38: *value = 60 << 20; break;
        /* Of several devices the last is the one that is set, the others are older. */
        case 75: *value = last ? (int)setting("major") : 8; break;
        case 76: *value = last ? (int)setting("minor") : 0; break;
        case 81: *value = 233472; break;
        case 97: *value = 232448; break;
        case 111: *value = 1024; break;
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
    else if ((attribute == 9 && value <= 100) || (attribute == 15 && value <= 2)) return leave(OK);
    else return leave(INVALID_VALUE);
    return leave(OK);
}

unsigned cluster_of(const Object* f, const Config* c, int* code) {
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
