/* peer.c — measures llama.cpp's shared libraries on a GGUF file: decoding at given depths, prompt processing, a batch of 8.
 *
 * usage: peer LIBDIR MODEL.gguf THREADS LABEL PART…, a PART being depth-N, prefill-512 or batch-8. Each is measured with and without flash
 * attention and the faster one counts. A depth is filled with copies of one prefill of 512, moved to their positions: what a step costs
 * depends on how many rows there are. The libraries are opened at run time (the npm package @node-llama-cpp/linux-x64 holds them). Parameter
 * structs are passed as opaque blocks filled by the library's own defaults; only the leading counts and two switches are set. One JSON line a figure. */
#include <dlfcn.h>
#include <glob.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Larger than any of the library's parameter structs: these go by memory, so the callee reads only its own part. */
struct block {
    unsigned char b[2048];
};

struct batch { /* llama_batch */
    int32_t n_tokens;
    int32_t *token;
    float *embd;
    int32_t *pos, *n_seq_id, **seq_id;
    int8_t *logits;
};

static struct {
    struct block (*model_default_params)(void);
    struct block (*context_default_params)(void);
    void *(*model_load_from_file)(const char *, struct block);
    void *(*init_from_model)(void *, struct block);
    void (*free_context)(void *);
    struct batch (*batch_init)(int32_t, int32_t, int32_t);
    int32_t (*decode)(void *, struct batch);
    void *(*get_memory)(void *);
    void (*memory_clear)(void *, bool);
    bool (*memory_seq_rm)(void *, int32_t, int32_t, int32_t);
    void (*memory_seq_cp)(void *, int32_t, int32_t, int32_t, int32_t);
    void (*memory_seq_add)(void *, int32_t, int32_t, int32_t, int32_t);
    size_t (*state_seq_get_size)(void *, int32_t);
    size_t (*state_seq_get_data)(void *, uint8_t *, size_t, int32_t);
    size_t (*state_seq_set_data)(void *, const uint8_t *, size_t, int32_t);
    void (*log_set)(void (*)(int, const char *, void *), void *);
    void *(*get_model_vocab)(void *);
    int32_t (*n_tokens)(void *);
    void (*synchronize)(void *);
} llama;

static void quiet(int level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == 4) fputs(text, stderr);
}

static void *open_library(const char *dir, const char *pattern)
{
    char path[1024];
    glob_t found;
    snprintf(path, sizeof path, "%s/%s", dir, pattern);
    if (glob(path, 0, NULL, &found) || !found.gl_pathc) return NULL;
    void *h = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_GLOBAL);
    if (!h) fprintf(stderr, "peer: %s\n", dlerror());
    globfree(&found);
    return h;
}

static bool bind(const char *dir)
{
    void *base = open_library(dir, "libggml-base*.so*"), *ggml = open_library(dir, "libggml.*so*"), *lib = open_library(dir, "libllama.*so*");
    if (!base || !ggml || !lib) return false;
    void (*load_all)(const char *);
    *(void **)&load_all = dlsym(ggml, "ggml_backend_load_all_from_path");
    struct {
        void *slot;
        const char *name;
    } symbols[] = {{&llama.model_default_params, "llama_model_default_params"}, {&llama.context_default_params, "llama_context_default_params"},
                   {&llama.model_load_from_file, "llama_model_load_from_file"}, {&llama.init_from_model, "llama_init_from_model"},
                   {&llama.free_context, "llama_free"}, {&llama.batch_init, "llama_batch_init"}, {&llama.decode, "llama_decode"},
                   {&llama.get_memory, "llama_get_memory"}, {&llama.memory_clear, "llama_memory_clear"}, {&llama.memory_seq_rm, "llama_memory_seq_rm"},
                   {&llama.memory_seq_cp, "llama_memory_seq_cp"}, {&llama.memory_seq_add, "llama_memory_seq_add"},
                   {&llama.state_seq_get_size, "llama_state_seq_get_size"}, {&llama.state_seq_get_data, "llama_state_seq_get_data"},
                   {&llama.state_seq_set_data, "llama_state_seq_set_data"},
                   {&llama.log_set, "llama_log_set"}, {&llama.get_model_vocab, "llama_model_get_vocab"}, {&llama.n_tokens, "llama_vocab_n_tokens"},
                   {&llama.synchronize, "llama_synchronize"}};
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *p = dlsym(lib, symbols[i].name);
        if (!p) return fprintf(stderr, "peer: the library has no %s\n", symbols[i].name), false;
        memcpy(symbols[i].slot, &p, sizeof p);
    }
    llama.log_set(quiet, NULL);
    if (load_all) load_all(dir);
    return true;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { PREFILL = 512, BATCH = 8, PROMPT = 16, STEPS = 15, REPEATS = 3 };

static int32_t n_vocab;
static struct batch batch;

static void fail(const char *what)
{
    fprintf(stderr, "peer: %s\n", what);
    exit(1);
}

/* n tokens of sequence s from position p on into the batch; logits of the last one. */
static void put(int32_t s, int32_t p, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t at = batch.n_tokens++;
        batch.token[at] = 3 + ((p + i) * 7919 + 13) % (n_vocab - 3);
        batch.pos[at] = p + i;
        batch.n_seq_id[at] = 1;
        batch.seq_id[at][0] = s;
        batch.logits[at] = i == n - 1;
    }
}

static double decode(void *ctx)
{
    double t = now();
    if (llama.decode(ctx, batch)) fail("decode failed");
    llama.synchronize(ctx);
    batch.n_tokens = 0;
    return now() - t;
}

/* The counts lead: n_ctx, n_batch, n_ubatch, n_seq_max, … n_threads, n_threads_batch (both 4), in later versions more, then four enums of -1, the
 * last of which is flash attention. The switches end in no_perf, op_offload, swa_full (all set), kv_unified (not set). */
static void *make_context(void *model, int32_t n_ctx, int32_t n_sequences, bool unified, int32_t threads, int flash)
{
    struct block p = llama.context_default_params();
    int32_t *w = (int32_t *)p.b;
    w[0] = n_ctx;
    w[1] = w[2] = PREFILL;
    w[3] = n_sequences;
    int at = 4;
    while (at < 16 && !(w[at] == -1 && w[at + 1] == -1 && w[at + 2] == -1 && w[at + 3] == -1)) at++;
    int t = at - 2;
    while (t > 3 && !(w[t] == 4 && w[t + 1] == 4)) t--;
    size_t s = 64;
    while (s < 256 && memcmp(p.b + s, "\0\1\1\1\1", 6)) s++;
    if (at == 16 || t == 3 || s == 256) fail("the parameters of this version are laid out otherwise");
    w[t] = w[t + 1] = threads;
    w[at + 3] = flash;
    p.b[s + 5] = unified;
    void *ctx = llama.init_from_model(model, p);
    if (!ctx) fail("no context");
    return ctx;
}

/* ---------------------------------------------------------------- parts: tokens per second with one setting of flash attention */

/* Rows of sequence 0 up to `depth`: 512 computed, copied and moved as often as needed. */
static void fill(void *ctx, int32_t depth)
{
    void *memory = llama.get_memory(ctx);
    put(0, 0, depth < PREFILL ? depth : PREFILL);
    decode(ctx);
    size_t size = llama.state_seq_get_size(ctx, 0);
    uint8_t *rows = malloc(size);
    if (!rows || llama.state_seq_get_data(ctx, rows, size, 0) != size) fail("rows could not be copied");
    for (int32_t have = PREFILL; have < depth; have += PREFILL) {
        if (!llama.state_seq_set_data(ctx, rows, size, 1)) fail("rows could not be copied");
        llama.memory_seq_add(memory, 1, 0, PREFILL, have);
        llama.memory_seq_cp(memory, 1, 0, have, have + PREFILL);
        llama.memory_seq_rm(memory, 1, -1, -1);
    }
    free(rows);
}

static double decode_rate(void *model, int32_t threads, int flash, int32_t depth)
{
    double best = 0;
    void *ctx = make_context(model, depth + 1024, 2, true, threads, flash);
    if (depth) fill(ctx, depth);
    put(0, depth, 1);
    decode(ctx); /* moves the keys */
    for (int r = 0; r < REPEATS; r++) {
        double t[STEPS];
        int n = depth > 8192 ? STEPS / 3 : STEPS;
        for (int k = 0; k < n; k++) {
            llama.memory_seq_rm(llama.get_memory(ctx), 0, depth + 1, -1);
            put(0, depth + 1, 1);
            t[k] = decode(ctx);
        }
        qsort(t, (size_t)n, sizeof *t, compare);
        if (1 / t[n / 2] > best) best = 1 / t[n / 2];
    }
    llama.free_context(ctx);
    return best;
}

static double prefill_rate(void *model, int32_t threads, int flash)
{
    double best = 0;
    void *ctx = make_context(model, 2 * PREFILL, 1, false, threads, flash);
    put(0, 0, PROMPT);
    decode(ctx);
    for (int k = 0; k < REPEATS; k++) {
        llama.memory_clear(llama.get_memory(ctx), true);
        put(0, 0, PREFILL);
        double rate = PREFILL / decode(ctx);
        if (rate > best) best = rate;
    }
    llama.free_context(ctx);
    return best;
}

static double batch_rate(void *model, int32_t threads, int flash)
{
    double best = 0;
    void *ctx = make_context(model, BATCH * 256, BATCH, false, threads, flash);
    for (int32_t s = 0; s < BATCH; s++) put(s, 0, PROMPT);
    decode(ctx);
    for (int32_t r = 0; r < REPEATS; r++) {
        double t[STEPS];
        for (int32_t k = 0; k < STEPS; k++) {
            for (int32_t s = 0; s < BATCH; s++) put(s, PROMPT + r * STEPS + k, 1);
            t[k] = decode(ctx);
        }
        qsort(t, STEPS, sizeof *t, compare);
        if (BATCH / t[STEPS / 2] > best) best = BATCH / t[STEPS / 2];
    }
    llama.free_context(ctx);
    return best;
}

int main(int argc, char **argv)
{
    if (argc < 6) return fprintf(stderr, "usage: peer LIBDIR MODEL.gguf THREADS LABEL PART...\n"), 2;
    if (!bind(argv[1])) return 1;
    void *model = llama.model_load_from_file(argv[2], llama.model_default_params());
    if (!model) return fprintf(stderr, "peer: cannot load %s\n", argv[2]), 1;
    n_vocab = llama.n_tokens(llama.get_model_vocab(model));
    batch = llama.batch_init(PREFILL, 0, 1);
    int32_t threads = atoi(argv[3]);
    for (int i = 5; i < argc; i++) {
        const char *part = argv[i], *number = strchr(part, '-');
        bool depth = !strncmp(part, "depth-", 6);
        double best = 0;
        if (!number) fail("a part is depth-N, prefill-512 or batch-8");
        for (int flash = 0; flash < 2; flash++) {
            double rate = depth ? decode_rate(model, threads, flash, atoi(number + 1)) : *part == 'p' ? prefill_rate(model, threads, flash) : batch_rate(model, threads, flash);
            if (rate > best) best = rate;
        }
        int length = (int)(number - part);
        printf("{\"name\":\"%.*s/%s/%s\",\"peer\":%.3f,\"unit\":\"tokens/s\"}\n", depth ? 6 : length, depth ? "decode" : part, argv[4],
               depth ? part : number + 1, best);
        fflush(stdout);
    }
    return 0;
}
