/* peer.c — measures llama.cpp's shared libraries on a GGUF file: prompt processing and decoding at given depths.
 *
 * usage: peer LIBDIR MODEL.gguf THREADS LABEL DEPTH…
 * The libraries are opened at run time (the npm package @node-llama-cpp/linux-x64 holds them). Parameter structs are passed as opaque
 * blocks filled by the library's own defaults; only the leading counts and the flash-attention switch are set. One JSON line a figure. */
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

static struct {
    struct block (*model_default_params)(void);
    struct block (*context_default_params)(void);
    void *(*model_load_from_file)(const char *, struct block);
    void *(*init_from_model)(void *, struct block);
    void (*free_context)(void *);
    struct block (*batch_get_one)(int32_t *, int32_t);
    int32_t (*decode)(void *, struct block);
    void *(*get_memory)(void *);
    void (*memory_clear)(void *, bool);
    bool (*memory_seq_rm)(void *, int32_t, int32_t, int32_t);
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
                   {&llama.free_context, "llama_free"}, {&llama.batch_get_one, "llama_batch_get_one"}, {&llama.decode, "llama_decode"},
                   {&llama.get_memory, "llama_get_memory"}, {&llama.memory_clear, "llama_memory_clear"}, {&llama.memory_seq_rm, "llama_memory_seq_rm"},
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

static int32_t n_vocab;

static double run(void *ctx, int32_t n)
{
    int32_t tokens[512];
    for (int32_t i = 0; i < n; i++) tokens[i] = 3 + (i * 7919 + 13) % (n_vocab - 3);
    double t = now();
    if (llama.decode(ctx, llama.batch_get_one(tokens, n))) exit((fprintf(stderr, "peer: decode failed\n"), 1));
    llama.synchronize(ctx);
    return now() - t;
}

static void *make_context(void *model, int32_t n_ctx, int32_t threads, int flash)
{
    struct block p = llama.context_default_params();
    int32_t *w = (int32_t *)p.b;
    w[0] = n_ctx; /* n_ctx, n_batch, n_ubatch, n_seq_max, … n_threads, n_threads_batch (both 4), in later versions more, then four enums of -1 */
    w[1] = w[2] = 512;
    int at = 3;
    while (at < 16 && !(w[at] == -1 && w[at + 1] == -1 && w[at + 2] == -1 && w[at + 3] == -1)) at++;
    int t = at - 2;
    while (t > 3 && !(w[t] == 4 && w[t + 1] == 4)) t--;
    if (at == 16 || t == 3) return NULL;
    w[t] = w[t + 1] = threads;
    w[at + 3] = flash;
    return llama.init_from_model(model, p);
}

int main(int argc, char **argv)
{
    if (argc < 6) return fprintf(stderr, "usage: peer LIBDIR MODEL.gguf THREADS LABEL DEPTH...\n"), 2;
    if (!bind(argv[1])) return 1;
    void *model = llama.model_load_from_file(argv[2], llama.model_default_params());
    if (!model) return fprintf(stderr, "peer: cannot load %s\n", argv[2]), 1;
    n_vocab = llama.n_tokens(llama.get_model_vocab(model));
    int32_t threads = atoi(argv[3]), deepest = 0;
    for (int i = 5; i < argc; i++) deepest = atoi(argv[i]) > deepest ? atoi(argv[i]) : deepest;
    double prefill = 0, decode[16] = {0};
    for (int flash = 0; flash < 2; flash++) {
        void *ctx = make_context(model, deepest + 1024, threads, flash);
        if (!ctx) return fprintf(stderr, "peer: no context\n"), 1;
        run(ctx, 512);
        for (int k = 0; k < 3; k++) {
            llama.memory_clear(llama.get_memory(ctx), true);
            double rate = 512 / run(ctx, 512);
            if (rate > prefill) prefill = rate;
        }
        llama.memory_clear(llama.get_memory(ctx), true);
        for (int i = 5, have = 0; i < argc && i < 21; i++) {
            int32_t depth = atoi(argv[i]);
            while (have < depth) {
                int32_t n = depth - have < 512 ? depth - have : 512;
                run(ctx, n);
                have += n;
            }
            double t[15];
            int n = depth > 8192 ? 7 : 15;
            for (int k = 0; k < n; k++) {
                t[k] = run(ctx, 1);
                llama.memory_seq_rm(llama.get_memory(ctx), 0, have, -1);
            }
            qsort(t, (size_t)n, sizeof *t, compare);
            if (1 / t[n / 2] > decode[i - 5]) decode[i - 5] = 1 / t[n / 2];
        }
        llama.free_context(ctx);
    }
    printf("{\"name\":\"prefill/%s/512\",\"peer\":%.3f,\"unit\":\"tokens/s\"}\n", argv[4], prefill);
    for (int i = 5; i < argc && i < 21; i++)
        printf("{\"name\":\"decode/%s/depth-%s\",\"peer\":%.3f,\"unit\":\"tokens/s\"}\n", argv[4], argv[i], decode[i - 5]);
    return 0;
}
