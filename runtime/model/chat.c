/* chat.c — chat templates without a template engine: the file's template is recognised by its marks and rendered by its family's rule.
 *
 * A file without a template is a plain language model: its messages are joined by line ends and continued. */
#include "runtime/model/model.h"

#include <stdlib.h>
#include <string.h>

struct text { /* counts beyond its capacity */
    char *out;
    size_t cap, n;
    struct kv_quoted *quoted; /* [one a message] where messages stand in it; NULL: not wanted */
    size_t n_quoted;
};

static void put_bytes(struct text *t, const char *s, size_t len)
{
    if (t->n < t->cap) memcpy(t->out + t->n, s, len < t->cap - t->n ? len : t->cap - t->n);
    t->n += len;
}

static void put(struct text *t, const char *s)
{
    put_bytes(t, s, strlen(s));
}

static void put_message(struct text *t, const char *s, size_t len)
{
    if (t->quoted && len) t->quoted[t->n_quoted++] = (struct kv_quoted){t->n, t->n + len};
    put_bytes(t, s, len);
}

static void put_content(struct text *t, const char *s)
{
    put_message(t, s, strlen(s));
}

static void put_trimmed(struct text *t, const char *s)
{
    static const char blank[] = " \t\r\n\v\f";
    s += strspn(s, blank);
    size_t len = strlen(s);
    while (len && memchr(blank, s[len - 1], sizeof blank - 1)) len--;
    put_message(t, s, len);
}

static void put_token(struct text *t, const struct kv_tokenizer *k, int32_t id)
{
    if (id >= 0) put_bytes(t, k->pieces[id].text, k->pieces[id].len);
}

static bool holds(struct kv_gguf_string s, const char *mark)
{
    return memmem(s.data, s.len, mark, strlen(mark)) != NULL;
}

static bool is_role(const struct kv_chat_message *m, const char *role)
{
    return !strcmp(m->role, role);
}

/* ---------------------------------------------------------------- families that wrap each message in its role */

static const struct wrap {
    const char *mark, *also;                 /* what the template holds; also may be NULL */
    const char *before_role, *after_role, *end;
    bool trim, eos_before_end;
} wraps[] = {
    {"<|im_start|>", NULL, "<|im_start|>", "\n", "<|im_end|>\n", false, false},                                     /* chatml */
    {"<|start_header_id|>", NULL, "<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", true, false},       /* llama 3 */
    {"<|start_of_role|>", NULL, "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>\n", false, false},         /* granite */
    {"<|user|>", "<|end|>", "<|", "|>\n", "<|end|>\n", false, false},                                               /* phi 3 */
    {"<|user|>", "eos_token", "<|", "|>\n", "\n", false, true},                                                     /* zephyr */
};

/* The system prompt a chatml template puts before a conversation that has none: "<|im_start|>system\nTEXT<|im_end|>" with TEXT written
 * out. The line end may stand in the file as itself or as backslash and n. */
static void put_default_system(struct text *t, struct kv_gguf_string template)
{
    static const char opening[] = "<|im_start|>system", closing[] = "<|im_end|>";
    const char *end = template.data + template.len;
    for (const char *p = template.data; (p = memmem(p, (size_t)(end - p), opening, sizeof opening - 1)); p++) {
        const char *from = p + sizeof opening - 1;
        size_t line_end = from < end && *from == '\n' ? 1 : end - from > 1 && from[0] == '\\' && from[1] == 'n' ? 2 : 0;
        const char *to = memmem(from, (size_t)(end - from), closing, sizeof closing - 1);
        if (!line_end || !to) continue;
        from += line_end;
        if (memchr(from, '\'', (size_t)(to - from)) || memchr(from, '"', (size_t)(to - from)) || memchr(from, '{', (size_t)(to - from))) continue;
        put(t, "<|im_start|>system\n");
        for (; from < to; from++) {
            bool escaped = *from == '\\' && to - from > 1 && from[1] == 'n';
            put_bytes(t, escaped ? "\n" : from, 1);
            from += escaped;
        }
        put(t, "<|im_end|>\n");
        return;
    }
}

static void render_wrapped(struct text *t, const struct kv_tokenizer *k, const struct wrap *w, const struct kv_chat_message *msgs, size_t n)
{
    if (w == wraps && !is_role(&msgs[0], "system")) put_default_system(t, k->chat_template);
    for (size_t i = 0; i < n; i++) {
        put(t, w->before_role);
        put(t, msgs[i].role);
        put(t, w->after_role);
        if (w->trim) put_trimmed(t, msgs[i].content);
        else put_content(t, msgs[i].content);
        if (w->eos_before_end) put_token(t, k, k->eos);
        put(t, w->end);
    }
    put(t, w->before_role);
    put(t, "assistant");
    put(t, w->after_role);
}

/* ---------------------------------------------------------------- [INST] families: llama 2, mistral */

static void render_llama2(struct text *t, const struct kv_tokenizer *k, const struct kv_chat_message *msgs, size_t n)
{
    const char *system = is_role(&msgs[0], "system") ? msgs[0].content : NULL;
    bool first = true;
    for (size_t i = system != NULL; i < n; i++) {
        if (is_role(&msgs[i], "assistant")) {
            put(t, " ");
            put_trimmed(t, msgs[i].content);
            put(t, " ");
            put_token(t, k, k->eos);
            continue;
        }
        if (!first) put_token(t, k, k->bos); /* the first one is the tokenizer's */
        put(t, "[INST] ");
        if (first && system) {
            put(t, "<<SYS>>\n");
            put_content(t, system);
            put(t, "\n<</SYS>>\n\n");
        }
        put_trimmed(t, msgs[i].content);
        put(t, " [/INST]");
        first = false;
    }
}

static void render_mistral(struct text *t, const struct kv_tokenizer *k, const struct kv_chat_message *msgs, size_t n)
{
    struct kv_gguf_string c = k->chat_template;
    const char *system = is_role(&msgs[0], "system") ? msgs[0].content : NULL;
    bool own_mark = holds(c, "[SYSTEM_PROMPT]"), before_last = holds(c, "loop.last and system_message");
    bool answer_space = holds(c, "' ' + message") || holds(c, "\" \" + message");
    size_t carrier = n; /* the user message that carries the system prompt */
    for (size_t i = 0; i < n; i++)
        if (is_role(&msgs[i], "user") && (before_last || carrier == n)) carrier = i;
    if (system && own_mark) {
        put(t, holds(c, "[SYSTEM_PROMPT] ") ? "[SYSTEM_PROMPT] " : "[SYSTEM_PROMPT]");
        put_content(t, system);
        put(t, "[/SYSTEM_PROMPT]");
    }
    for (size_t i = system != NULL; i < n; i++) {
        if (is_role(&msgs[i], "assistant")) {
            if (answer_space) put(t, " ");
            put_content(t, msgs[i].content);
            put_token(t, k, k->eos);
            continue;
        }
        put(t, holds(c, "[INST] ") ? "[INST] " : "[INST]");
        if (system && !own_mark && i == carrier) {
            put_content(t, system);
            put(t, "\n\n");
        }
        put_content(t, msgs[i].content);
        put(t, holds(c, " [/INST]") ? " [/INST]" : "[/INST]");
    }
}

/* ---------------------------------------------------------------- */

static void render_plain(struct text *t, const struct kv_chat_message *msgs, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i) put(t, "\n");
        put_content(t, msgs[i].content);
    }
}

static enum kv_status check_messages(const struct kv_chat_message *msgs, size_t n, struct kv_error *err)
{
    if (!n) return kv_fail(err, KV_EMPTY_PROMPT, "messages", "a conversation needs at least one message");
    for (size_t i = 0; i < n; i++) {
        if (!is_role(&msgs[i], "system") && !is_role(&msgs[i], "user") && !is_role(&msgs[i], "assistant"))
            return kv_fail(err, KV_BAD_ARGUMENT, "messages", "message %zu has role '%.40s'; system, user and assistant are known", i, msgs[i].role);
        if (i && is_role(&msgs[i], "system")) return kv_fail(err, KV_BAD_ARGUMENT, "messages", "message %zu: a system message stands first", i);
    }
    return KV_OK;
}

static enum kv_status render(struct text *t, const struct kv_tokenizer *k, const struct kv_chat_message *msgs, size_t n, struct kv_error *err)
{
    struct kv_gguf_string c = k->chat_template;
    if (!c.len) return render_plain(t, msgs, n), KV_OK;
    if (holds(c, "bos_token") && !k->add_bos) put_token(t, k, k->bos);
    for (size_t i = 0; i < sizeof wraps / sizeof *wraps; i++)
        if (holds(c, wraps[i].mark) && (!wraps[i].also || holds(c, wraps[i].also))) return render_wrapped(t, k, &wraps[i], msgs, n), KV_OK;
    if (holds(c, "[INST]")) {
        if (holds(c, "<<SYS>>")) render_llama2(t, k, msgs, n);
        else render_mistral(t, k, msgs, n);
        return KV_OK;
    }
    kv_fail(err, KV_UNSUPPORTED, "tokenizer.chat_template", "the model's chat template belongs to no family known here");
    kv_hint(err, "known are chatml, llama 2, llama 3, mistral, granite, phi 3 and zephyr; write the prompt yourself and use /v1/completions");
    return KV_UNSUPPORTED;
}

static enum kv_status format(struct text *t, const struct kv_model *m, const struct kv_chat_message *msgs, size_t n, struct kv_error *err)
{
    enum kv_status s = check_messages(msgs, n, err);
    return s == KV_OK ? render(t, m->tokenizer, msgs, n, err) : s;
}

enum kv_status kv_chat_format(const struct kv_model *m, const struct kv_chat_message *msgs, size_t n, char *out, size_t cap, size_t *len, struct kv_error *err)
{
    struct text t = {.out = out, .cap = cap};
    enum kv_status s = format(&t, m, msgs, n, err);
    if (s != KV_OK) return s;
    *len = t.n;
    return t.n <= cap ? KV_OK : kv_fail(err, KV_CAPACITY, "messages", "the prompt has %zu bytes; there is room for %zu", t.n, cap);
}

enum kv_status kv_chat_tokenize(const struct kv_model *m, const struct kv_chat_message *msgs, size_t n, int32_t *ids, size_t cap, size_t *n_ids, struct kv_error *err)
{
    struct text t = {0};
    enum kv_status s = format(&t, m, msgs, n, err);
    if (s != KV_OK) return s;
    t.cap = t.n;
    t.n = 0;
    t.out = malloc(t.cap + 1);
    t.quoted = calloc(n + 1, sizeof *t.quoted); /* a system text stands in one place, every other message in its own */
    s = t.out && t.quoted ? format(&t, m, msgs, n, err) : kv_fail(err, KV_OUT_OF_MEMORY, "messages", "no memory for the prompt");
    if (s == KV_OK) s = kv_tokenizer_encode(m->tokenizer, t.out, t.n, true, t.quoted, t.n_quoted, ids, cap, n_ids, err);
    free(t.quoted);
    free(t.out);
    return s;
}
