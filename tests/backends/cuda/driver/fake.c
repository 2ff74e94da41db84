/* The state of the driver: objects, the log, and what a test says and asks. */
#include "fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Object* live[LIVE];
KnownKernel kernels[KERNELS];
int fault_at_launch, fault, initialised, retained;
_Thread_local int current;
long long used;

static char log_text[1 << 20];
static size_t log_end;
static struct { char name[64]; int after, code; } failing;
/* Settings by name. */
static struct { const char* name; long long value; } settings[] = {
    {"devices", 1}, {"major", 9}, {"minor", 0}, {"version", 13000}, {"clusters", 33},
    {"blocks", 2}, {"memory", 1 << 26}, {"loads", 1}, {"multiprocessors", 132},
};

long long setting(const char* name) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!strcmp(settings[i].name, name)) return settings[i].value;
    abort();
}

void say(const char* form, ...) {
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
    static const long long first[] = {1, 9, 0, 13000, 33, 2, 1 << 26, 1, 132};
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
    if (count > ARGUMENTS) abort();
    for (int i = 0; i < KERNELS; i++)
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

int enter(const char* name) {
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

int leave(int code) {
    if (code) say(" -> %d", code);
    say("\n");
    return code;
}

int refused(const char* name) {
    int code = enter(name);
    if (code) return code;
    if (!initialised) return leave(NOT_INITIALIZED);
    return 0;
}

/* For calls that need a current context. */
int refused_here(const char* name) {
    int code = refused(name);
    if (code) return code;
    return current ? 0 : leave(INVALID_CONTEXT);
}

Object* made(char kind) {
    for (int i = 1; i < LIVE; i++)
        if (!live[i]) {
            live[i] = calloc(1, sizeof(Object));
            live[i]->kind = kind;
            return live[i];
        }
    abort();
}

Object* known(void* handle, char kind) {
    for (int i = 0; i < LIVE; i++)
        if (live[i] && live[i] == handle && live[i]->kind == kind) return live[i];
    return 0;
}

int ended(void* handle, char kind) {
    for (int i = 0; i < LIVE; i++)
        if (live[i] && live[i] == handle && live[i]->kind == kind) {
            drop(i);
            return leave(OK);
        }
    return leave(INVALID_HANDLE);
}
