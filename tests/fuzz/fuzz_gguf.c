/* fuzz_gguf.c — damaged model files must be refused or open harmlessly: no crash, no read outside, no memory beyond the file's measure.
 *
 * usage: fuzz_gguf [--cases N] [--seed S]    the same numbers give the same cases; a failing one is named by its number */
#include "runtime/kvasir.h"
#include "tests/unit/model/write_gguf.c" /* the fuzz programs link the library alone */

#include <sys/mman.h>
#include <sys/resource.h>

static uint64_t below(uint64_t *state, uint64_t n)
{
    return n ? next_random(state) % n : 0;
}

/* Where damage does most: in the metadata and the tensor table, which are a small part of the file. */
static size_t pick_place(uint64_t *state, size_t n, size_t header)
{
    return (size_t)below(state, below(state, 8) ? header : n);
}

static void put_number(uint64_t *state, uint8_t *bytes, size_t n, size_t at)
{
    static const uint64_t numbers[] = {0, 1, 2, 4, 8, 31, 32, 33, 127, 255, 256, 65535, 65536, INT32_MAX, UINT32_MAX, 1u << 31, 1ull << 32, INT64_MAX, UINT64_MAX, 1ull << 61, 1ull << 60};
    uint64_t v = numbers[below(state, sizeof numbers / sizeof *numbers)];
    size_t width = below(state, 2) ? 8 : 4;
    if (n - at >= width) memcpy(bytes + at, &v, width);
}

/* Damages up to 4 places; returns the new length. */
static size_t damage(uint64_t *state, uint8_t *bytes, size_t n, size_t header)
{
    if (!below(state, 6)) return (size_t)below(state, below(state, 2) ? header : n + 1);
    for (uint64_t i = below(state, 2) ? 1 : below(state, 4) + 1; i; i--) {
        size_t at = pick_place(state, n, header), other = pick_place(state, n, header), len = (size_t)below(state, 40) + 1;
        switch (below(state, 5)) {
        case 0: bytes[at] ^= (uint8_t)(1u << below(state, 8)); break;
        case 1: bytes[at] = (uint8_t)next_random(state); break;
        case 2: put_number(state, bytes, n, at); break;
        case 3:
            if (n - at >= len && n - other >= len) memmove(bytes + at, bytes + other, len);
            break;
        default: /* a number more or less, where one may stand */
            if (n - at >= 8) bytes[at] = (uint8_t)(bytes[at] + (below(state, 2) ? 1 : 255));
        }
    }
    return n;
}

static void use(const struct kv_model *m)
{
    int32_t ids[512];
    char out[4096];
    size_t n, len;
    const char text[] = "hello <|im_start|> abab </s> 12345\n\xff\xc3";
    if (kv_tokenize(m, text, sizeof text, true, ids, 512, &n, NULL) == KV_OK) kv_detokenize(m, ids, n, true, out, sizeof out, &len);
    for (int32_t id = 0; id < kv_model_info(m)->n_vocab; id += 7) kv_token_bytes(m, id, true, out, sizeof out);
    kv_chat_format(m, (struct kv_chat_message[]){{"user", "hello"}, {"assistant", "x"}, {"user", "y"}}, 3, out, sizeof out, &len, NULL);
}

static enum kv_status open_bytes(const uint8_t *bytes, size_t n)
{
    int fd = memfd_create("model", MFD_CLOEXEC);
    char path[40];
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct kv_model *m = NULL;
    struct kv_error err = {0};
    enum kv_status s = kv_model_open(path, NULL, &m, &err);
    if ((s == KV_OK) != (m != NULL) || (s != KV_OK && (err.status != s || !err.message[0]))) {
        fprintf(stderr, "a refusal without its reason: %s, '%s'\n", kv_status_name(s), err.message);
        abort();
    }
    if (m) use(m);
    kv_model_close(m);
    close(fd);
    return s;
}

static size_t header_bytes(const uint8_t *bytes, size_t n)
{
    struct kv_gguf *g;
    size_t first = n;
    if (kv_gguf_parse(bytes, n, &g, NULL) != KV_OK) abort();
    for (size_t i = 0; i < g->n_tensors; i++)
        if ((size_t)(g->tensors[i].data - bytes) < first) first = (size_t)(g->tensors[i].data - bytes);
    kv_gguf_close(g);
    return first;
}

int main(int argc, char **argv)
{
    uint64_t cases = 3000, seed = 1, counts[KV_STATUS_COUNT] = {0};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--cases")) cases = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[i + 1], NULL, 10);
    }
#ifndef __SANITIZE_ADDRESS__
    /* The files have under 200 KiB: whoever needs more than this believed a number in one. */
    if (setrlimit(RLIMIT_DATA, &(struct rlimit){64u << 20, 64u << 20})) return 2;
#endif
    const struct random_model base[] = {
        {.type = KV_Q8_0, .d_model = 32, .n_q_heads = 2, .n_kv_heads = 1, .d_ff = 32, .n_layers = 1},
        {.architecture = "qwen2", .type = KV_F16, .d_model = 32, .n_q_heads = 2, .n_kv_heads = 1, .d_ff = 32, .n_layers = 1, .bpe = true, .untied = true, .chat_template = "<|im_start|>system\nx<|im_end|>"},
        {.architecture = "qwen3", .d_model = 16, .n_q_heads = 1, .n_kv_heads = 1, .d_ff = 32, .n_layers = 2, .bpe = true, .pre = "default", .chat_template = "[INST]"},
        {.architecture = "granite", .type = KV_Q4_0, .d_model = 32, .n_q_heads = 2, .n_kv_heads = 2, .d_ff = 32, .n_layers = 1, .bpe = true, .pre = "qwen2"},
    };
    enum { N_BASE = sizeof base / sizeof *base };
    uint8_t *whole[N_BASE];
    size_t n[N_BASE], header[N_BASE];
    for (int b = 0; b < N_BASE; b++) {
        whole[b] = random_gguf(&base[b], &n[b]);
        header[b] = header_bytes(whole[b], n[b]);
        if (open_bytes(whole[b], n[b]) != KV_OK) return fprintf(stderr, "base %d does not open\n", b), 1;
    }
    for (uint64_t c = 0; c < cases; c++) {
        uint64_t state = seed * 0x9E3779B97F4A7C15u + c;
        int b = (int)(c % N_BASE);
        uint8_t *bytes = malloc(n[b]); /* its own block, so that a sanitizer sees a read beyond it */
        memcpy(bytes, whole[b], n[b]);
        size_t len = damage(&state, bytes, n[b], header[b]);
        uint8_t *exact = malloc(len + 1);
        struct kv_gguf *g = NULL;
        memcpy(exact, bytes, len);
        if (kv_gguf_parse(exact, len, &g, NULL) == KV_OK) kv_gguf_close(g);
        enum kv_status s = open_bytes(bytes, len);
        counts[s]++;
        if (s == KV_OUT_OF_MEMORY || s == KV_INTERNAL) return fprintf(stderr, "case %llu: %s\n", (unsigned long long)c, kv_status_name(s)), 1;
        free(bytes);
        free(exact);
    }
    printf("%llu cases:", (unsigned long long)cases);
    for (int s = 0; s < KV_STATUS_COUNT; s++)
        if (counts[s]) printf(" %s %llu", kv_status_name((enum kv_status)s), (unsigned long long)counts[s]);
    putchar('\n');
    for (int b = 0; b < N_BASE; b++) free(whole[b]);
    return 0;
}
