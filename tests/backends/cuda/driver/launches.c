/* Launches, streams, graphs and events. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Node node_of(const Object* f, const Config* c, void** arguments) {
    Node node = {0};
    int programmatic = 0, cooperative = 0;
    node.launch = (Launch){c->grid[0], c->block[0], 1, c->shared, 0, 0, 0, 0, 1};
    for (unsigned i = 0; i < c->count; i++) {
        if (c->attributes[i].id == 4) node.launch.cluster = c->attributes[i].value.dims[0];
        if (c->attributes[i].id == 6) programmatic = c->attributes[i].value.flag;
        if (c->attributes[i].id == 2) cooperative = c->attributes[i].value.flag;
    }
    /* Blocks that wait for each other are launched in one of both ways. */
    node.launch.whole_grid = cooperative || programmatic;
    size_t size = sizeof node.text;
    size_t at = snprintf(node.text, size, "%s grid=%u block=%u cluster=%u shared=%u", f->name,
                         c->grid[0], c->block[0], node.launch.cluster, c->shared);
    if (programmatic) at += snprintf(node.text + at, size - at, " programmatic");
    if (cooperative) at += snprintf(node.text + at, size - at, " cooperative");
    for (int i = 0; i < KERNELS; i++) {
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
    say(" %s%s", node.text, s && s->shared ? " ahead" : "");
    if (s && (s->capturing || s->owner)) {
        Object* owner = s->capturing ? s : s->owner;
        if (owner->nodes == NODES) abort();
        owner->node[owner->nodes++] = node;
        s->launched++;
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

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    CHECK(refused_here("cuCtxGetStreamPriorityRange"));
    *least = 0, *greatest = -5;
    return leave(OK);
}

int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
    CHECK(refused_here("cuStreamCreateWithPriority"));
    if (flags > 1) return leave(INVALID_VALUE);
    say(" priority=%d", priority);
    Object* made_stream = made('s');
    *stream = made_stream;
    made_stream->shared = -priority;
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
    Object *s = known(stream, 's'), *e = known(event, 'e');
    if (flags || !s || !e) return leave(INVALID_HANDLE);
    say(" %zu%s", e->bytes, s->shared ? " ahead" : "");
    Object* owner = s->capturing ? s : s->owner;
    if (owner && e->owner != owner) return leave(CAPTURE_ISOLATION);
    if (!owner && e->owner) s->owner = e->owner, s->launched = s->joined = 0;
    if (s->capturing && e->of != s && e->launched > e->of->joined) e->of->joined = e->launched;
    return leave(OK);
}

int cuStreamBeginCapture_v2(void* stream, int mode) {
    CHECK(refused_here("cuStreamBeginCapture_v2"));
    Object* s = known(stream, 's');
    /* The default stream cannot be captured. */
    if (!s || s->capturing || mode != 1) return leave(CAPTURE_UNSUPPORTED);
    s->capturing = 1;
    s->nodes = s->launched = 0;
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
    int left = 0;
    for (int i = 0; i < LIVE; i++) {
        if (!live[i] || live[i]->owner != s) continue;
        left |= live[i]->kind == 's' && live[i]->joined < live[i]->launched;
        live[i]->owner = NULL;
    }
    if (left) return leave(CAPTURE_UNJOINED);
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
    Object* s = known(stream, 's');
    e->of = s, e->owner = s && s->capturing ? s : s ? s->owner : NULL;
    e->launched = s ? s->launched : 0;
    say(" %zu%s", e->bytes, s && s->shared ? " ahead" : "");
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
