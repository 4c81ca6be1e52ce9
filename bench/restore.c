/* restore.c — a conversation's history read back from disk against computing it again, by the serving engine on one GGUF (contract §5).
 * usage: restore MODEL.gguf [--tokens N] [--name NAME]. One JSON line a figure. What was saved went past the page cache where the file system allows it,
 * so the read is the device's. Rows are not found in host memory: reuse of prefixes is off. */
#include "runtime/kvasir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "restore: %s: %s\n", what, why);
    exit(1);
}

static void line(const char *model, const char *name, double value, const char *unit)
{
    printf("{\"name\":\"restore/%s/%s\",\"value\":%.3f,\"unit\":\"%s\",\"floor\":null,\"ratio\":null}\n", model, name, value, unit);
    fflush(stdout);
}

static struct kv_request_stats turn(struct kv_engine *e, const int32_t *prompt, int32_t n)
{
    struct kv_request r = {.prompt = prompt, .n_prompt = n, .max_tokens = 1, .ignore_eos = true, .sampling = {.top_p = 1, .repetition_penalty = 1}, .tenant = "bench", .session = "s"};
    struct kv_error err = {0};
    struct kv_stream *s;
    struct kv_request_stats st;
    struct kv_chunk c[4];
    enum kv_finish finish = KV_RUNNING;
    int32_t got;
    if (kv_engine_submit(e, &r, &s, &err) != KV_OK) fail("submit", err.message);
    while (finish == KV_RUNNING)
        if (kv_stream_read(s, c, 4, 600000, &got, &finish) != KV_OK) fail("read", "no token");
    kv_stream_stats(s, &st);
    kv_stream_close(s);
    return st;
}

static struct kv_session_info saved(struct kv_engine *e)
{
    struct kv_session_info i = {0};
    struct kv_error err = {0};
    while (kv_engine_session(e, KV_SESSION_SHOW, "bench", "s", &i, &err) != KV_OK || i.state != KV_SESSION_PAUSED_HOST)
        if (i.reason != KV_OK) fail("save", kv_status_name(i.reason));
    return i;
}

int main(int argc, char **argv)
{
    const char *name = "model";
    int32_t n = 8192;
    char folder[] = "/var/tmp/kvasir-restore-XXXXXX", file[128];
    struct kv_model *m;
    struct kv_engine *e;
    struct kv_error err = {0};
    struct kv_engine_config c;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--tokens")) n = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--name")) name = argv[i + 1];
    }
    if (argc < 2 || n < 128 || n > 1 << 20) fail("usage", "restore MODEL.gguf [--tokens N] [--name NAME]");
    if (kv_model_open(argv[1], NULL, &m, &err) != KV_OK) fail(argv[1], err.message);
    if (!mkdtemp(folder)) fail(folder, "cannot be made");
    kv_engine_config_default(&c);
    c.prefix_reuse = false;
    c.context_length = n + 256;
    c.max_sequences = 1;
    c.host_bytes = UINT64_C(4) << 30;
    c.disk_path = folder;
    c.disk_bytes = UINT64_C(4) << 30;
    if (kv_engine_create(m, &c, &e, &err) != KV_OK) fail("engine", err.message);
    int32_t *prompt = malloc(((size_t)n + 128) * sizeof *prompt), vocab = kv_model_info(m)->n_vocab;
    if (!prompt) fail("memory", "none");
    for (int32_t i = 0; i < n + 128; i++) prompt[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % vocab;
    (void)turn(e, prompt + 64, 256); /* the engine's own measure of a row */
    struct kv_request_stats first = turn(e, prompt, n);
    struct kv_session_info kept = saved(e);
    struct kv_request_stats second = turn(e, prompt, n + 64); /* a new turn of 64 tokens */
    struct kv_session_info back;
    if (kv_engine_session(e, KV_SESSION_SHOW, "bench", "s", &back, &err) != KV_OK || back.restored_tokens < n - 64) fail("restore", kv_status_name(back.reason));
    line(name, "recompute", (double)first.ttft_us / 1e3, "ms");
    line(name, "restore", back.restore_us / 1e3, "ms");
    line(name, "ttft-of-64-new-tokens", (double)second.ttft_us / 1e3, "ms");
    line(name, "rate", (double)kept.bytes / back.restore_us / 1e3, "GB/s");
    line(name, "speedup", (double)first.ttft_us / back.restore_us, "x");
    kv_engine_destroy(e);
    kv_model_close(m);
    free(prompt);
    for (int i = 0; i < 64; i++) {
        snprintf(file, sizeof file, "%s/segment-%016x", folder, (unsigned)i);
        unlink(file);
    }
    snprintf(file, sizeof file, "%s/lock", folder);
    unlink(file);
    rmdir(folder);
    return 0;
}
