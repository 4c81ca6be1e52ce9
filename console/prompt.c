/* prompt.c — questions and typed lines: what a verb asks first, filters, and commands with completion and history. */
#include "console/app.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kv_wish none = {0};

static const char *rollout_text(const struct kv_app *a, const char *field)
{
    const char *s = json_string_value(json_object_get(a->rollout, field));
    return s ? s : "";
}

/* ---------------------------------------------------------------- verbs */

/* Why a verb cannot be used now, by the server's own word; NULL when it can. */
static const char *why_not(const struct kv_app *a, const struct kv_verb *verb)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(a->rollout, "verbs"), i, row) {
        const char *name = json_string_value(json_object_get(row, "verb"));
        if (name && !strcmp(name, verb->name) && json_is_false(json_object_get(row, "enabled"))) {
            const char *why = json_string_value(json_object_get(row, "why"));
            return why ? why : "not legal in this stage";
        }
    }
    return NULL;
}

static void ask(struct kv_app *a, const struct kv_verb *verb)
{
    const char *stage = rollout_text(a, "stage"), *name = rollout_text(a, "name");
    double percent = 100 * json_number_value(json_object_get(a->rollout, "fraction"));
    long long active = (long long)json_number_value(json_object_get(json_object_get(a->status, "live"), "active"));
    a->asked = (struct kv_wish){.kind = KV_WISH_VERB, .verb = verb};
    a->input[0] = 0;
    a->prompt = KV_PROMPT_CONFIRM;
    if (!strcmp(verb->name, "rollback") || !strcmp(verb->name, "abort"))
        snprintf(a->question, sizeof a->question, "%s %.60s: %s %.3g %% > EXACT_BASELINE, %lld live requests; y/N", !strcmp(verb->name, "abort") ? "abort" : "roll back", name, stage,
                 percent, active);
    else snprintf(a->question, sizeof a->question, "%s %.60s at %s: %s; y/N", verb->name, name, stage, verb->help);
    if (!strcmp(verb->name, "ramp")) a->prompt = KV_PROMPT_NAME, snprintf(a->question, sizeof a->question, "ramp to percent (now %.4g): ", percent);
    else if (!strcmp(verb->name, "advance") && !strcmp(stage, "RAMP"))
        a->prompt = KV_PROMPT_NAME, snprintf(a->question, sizeof a->question, "towards FULL; type the rollout's name (%.60s): ", name);
}

struct kv_wish kv_app_begin_verb(struct kv_app *a, const struct kv_verb *verb)
{
    int is_rollback = !strcmp(verb->name, "rollback");
    const char *why = is_rollback ? NULL : why_not(a, verb);
    if (!strcmp(verb->name, "list")) kv_app_show(a, KV_VIEW_ROLLOUTS);
    else if (!strcmp(verb->name, "show") || !strcmp(verb->name, "history")) kv_app_show(a, KV_VIEW_ROLLOUT);
    else if (a->readonly) kv_app_say(a, KV_STYLE_WARN, "this console is read-only (--readonly)");
    else if (kv_app_stale(a) && !is_rollback) kv_app_say(a, KV_STYLE_WARN, "the data is stale; nothing is changed until the server answers again");
    else if (!strcmp(verb->name, "create")) kv_app_say(a, KV_STYLE_NORMAL, "create with: kvasir rollout apply -f FILE.json");
    else if (!a->rollout) kv_app_say(a, KV_STYLE_WARN, "there is no rollout; create one: kvasir rollout apply -f FILE.json");
    else if (why) kv_app_say(a, KV_STYLE_WARN, "%s: %s", verb->name, why);
    else if (verb->danger == KV_VERB_SAFE) return (struct kv_wish){.kind = KV_WISH_VERB, .verb = verb};
    else ask(a, verb);
    return none;
}

/* ---------------------------------------------------------------- commands */

/* The word commands that are neither a view nor a verb. */
static const char *const words[] = {"context", "compare", "edit", "pin", "unpin", "drop", "fault", "drill", "dry-run", "help", "quit"};
enum { N_WORDS = sizeof words / sizeof *words };

static void remember(struct kv_app *a)
{
    if (a->n_said && !strcmp(a->said[a->n_said - 1], a->input)) return;
    if (a->n_said == KV_SAID) memmove(a->said, a->said + 1, sizeof a->said[0] * (KV_SAID - 1)), a->n_said--;
    snprintf(a->said[a->n_said++], sizeof a->said[0], "%s", a->input);
}

static void recall(struct kv_app *a, int step)
{
    int to = a->at_said + step;
    if (to < 0 || to > a->n_said) return;
    a->at_said = to;
    snprintf(a->input, sizeof a->input, "%s", to < a->n_said ? a->said[to] : "");
}

/* What is kept of the chosen conversation: pinned, released, or dropped after a question. */
static struct kv_wish session_verb(struct kv_app *a, const char *verb)
{
    const json_t *row = a->view == KV_VIEW_SESSIONS ? kv_app_row(a) : NULL;
    const char *id = json_string_value(json_object_get(row, "session")), *tenant = json_string_value(json_object_get(row, "tenant"));
    struct kv_wish w = {.kind = KV_WISH_SESSION};
    if (!id) return kv_app_say(a, KV_STYLE_NORMAL, "%s is about the chosen session; 5 shows them", verb), none;
    if (a->readonly) return kv_app_say(a, KV_STYLE_WARN, "this console is read-only (--readonly)"), none;
    if (kv_app_stale(a)) return kv_app_say(a, KV_STYLE_WARN, "the data is stale; nothing is changed until the server answers again"), none;
    snprintf(w.text, sizeof w.text, "%s\n%.100s\n%.300s", verb, tenant ? tenant : "", id);
    if (strcmp(verb, "drop")) return w;
    a->asked = w;
    a->prompt = KV_PROMPT_CONFIRM;
    snprintf(a->question, sizeof a->question, "drop what is kept of session %.100s: its next turn computes its history anew; y/N", id);
    return none;
}

/* The failure lab: a run of its own, or a fault on the next request that the shown rollout's candidate serves. */
static struct kv_wish fault_command(struct kv_app *a, const char *rest)
{
    char what[8], name[64];
    const char *id = json_string_value(json_object_get(a->rollout, "id"));
    struct kv_wish w = {.kind = KV_WISH_FAULT};
    if (a->readonly) return kv_app_say(a, KV_STYLE_WARN, "this console is read-only (--readonly)"), none;
    if (kv_app_stale(a)) return kv_app_say(a, KV_STYLE_WARN, "the data is stale; nothing is changed until the server answers again"), none;
    if (sscanf(rest, "%7s %63s", what, name) != 2 || (strcmp(what, "run") && strcmp(what, "arm") && strcmp(what, "disarm")))
        return kv_app_say(a, KV_STYLE_NORMAL, "fault run NAME, fault arm NAME or fault disarm NAME; kvasir fault lists the names"), none;
    snprintf(w.text, sizeof w.text, "%s\n%s\n%.64s", what, name, id ? id : "");
    if (strcmp(what, "arm")) return w;
    if (!id) return kv_app_say(a, KV_STYLE_NORMAL, "no rollout is live; kvasir fault arm takes a tenant too"), none;
    a->asked = w;
    a->prompt = KV_PROMPT_CONFIRM;
    snprintf(a->question, sizeof a->question, "arm %s on the next request that the candidate of %.64s serves, and nobody else's; y/N", name, id);
    return none;
}

static struct kv_wish command(struct kv_app *a)
{
    struct kv_wish w = {0};
    char word[64];
    int n = (int)strcspn(a->input, " ");
    const char *rest = a->input + n + strspn(a->input + n, " ");
    snprintf(word, sizeof word, "%.*s", n < 63 ? n : 63, a->input);
    if (!*word) return none;
    remember(a);
    snprintf(w.text, sizeof w.text, "%s", rest);
    for (int v = 0; v < KV_VIEWS; v++)
        if (!strcmp(word, kv_view_name((enum kv_view)v))) return kv_app_show(a, (enum kv_view)v), (struct kv_wish){.kind = KV_WISH_REFRESH};
    for (int i = 0; i < KV_N_VERBS; i++)
        if (!strcmp(word, kv_verbs[i].name)) return kv_app_begin_verb(a, &kv_verbs[i]);
    if (!strcmp(word, "pin") || !strcmp(word, "unpin") || !strcmp(word, "drop")) return session_verb(a, word);
    if (!strcmp(word, "fault")) return fault_command(a, rest);
    if (!strcmp(word, "drill") || !strcmp(word, "dry-run")) return kv_app_evidence(a, word, rest);
    if (!strcmp(word, "context")) return w.kind = KV_WISH_CONTEXT, w;
    if (!strcmp(word, "compare") && *rest) return w.kind = KV_WISH_COMPARE, w;
    if (!strcmp(word, "edit") && *rest && !a->readonly) return w.kind = KV_WISH_EDIT, w;
    if (!strcmp(word, "help")) return kv_app_key(a, '?');
    if (!strcmp(word, "q") || !strcmp(word, "quit")) a->quit = true;
    else if (!strcmp(word, "compare")) kv_app_say(a, KV_STYLE_NORMAL, "compare PROMPT: the baseline's tokens beside the candidate's");
    else if (!strcmp(word, "edit")) kv_app_say(a, KV_STYLE_NORMAL, a->readonly ? "this console is read-only (--readonly)" : "edit admission, edit fallback or edit release");
    else kv_app_say(a, KV_STYLE_WARN, "no view, verb or command is named '%s'; ? lists them", word);
    return none;
}

/* Completes the word in the command prompt to the first view, verb or command that begins with it. */
static void complete(struct kv_app *a)
{
    size_t n = strlen(a->input);
    const char *found = NULL;
    for (int v = 0; v < KV_VIEWS && !found; v++)
        if (!strncmp(a->input, kv_view_name((enum kv_view)v), n)) found = kv_view_name((enum kv_view)v);
    for (int i = 0; i < KV_N_VERBS && !found; i++)
        if (!strncmp(a->input, kv_verbs[i].name, n)) found = kv_verbs[i].name;
    for (int i = 0; i < N_WORDS && !found; i++)
        if (!strncmp(a->input, words[i], n)) found = words[i];
    if (found) snprintf(a->input, sizeof a->input, "%s", found);
}

/* ---------------------------------------------------------------- keys of a prompt */

static struct kv_wish finish_name(struct kv_app *a)
{
    if (!strcmp(a->asked.verb->name, "ramp")) {
        a->asked.fraction = atof(a->input) / 100;
        if (a->asked.fraction > 0 && a->asked.fraction <= 1) return a->asked;
        kv_app_say(a, KV_STYLE_WARN, "a ramp fraction is more than 0 and at most 100 percent");
    } else {
        if (!strcmp(a->input, rollout_text(a, "name"))) return a->asked;
        kv_app_say(a, KV_STYLE_WARN, "the name does not match; nothing was done");
    }
    return none;
}

static struct kv_wish confirm_key(struct kv_app *a, int key)
{
    a->prompt = KV_PROMPT_NONE;
    if (key == 'y' || key == 'Y') return a->asked;
    if (a->asked.kind == KV_WISH_ACTIVATE) kv_app_pop(a), kv_app_say(a, KV_STYLE_NORMAL, "nothing was activated; e goes on with your edit");
    else kv_app_say(a, KV_STYLE_NORMAL, "%s: nothing was done", a->asked.verb ? a->asked.verb->name : a->asked.kind == KV_WISH_FAULT ? "fault" : "drop");
    return none;
}

static struct kv_wish enter(struct kv_app *a)
{
    enum kv_prompt was = a->prompt;
    a->prompt = KV_PROMPT_NONE;
    if (was == KV_PROMPT_NAME) return finish_name(a);
    if (was == KV_PROMPT_COMMAND) return command(a);
    if (was == KV_PROMPT_FIND) kv_app_find(a, 1);
    return none;
}

struct kv_wish kv_app_prompt_key(struct kv_app *a, int key)
{
    bool filter = a->prompt == KV_PROMPT_FILTER, find = a->prompt == KV_PROMPT_FIND;
    char *text = filter ? a->filter[a->view] : find ? a->find : a->input;
    size_t cap = filter ? sizeof a->filter[0] : find ? sizeof a->find : sizeof a->input, n = strlen(text);
    if (a->prompt == KV_PROMPT_CONFIRM) return confirm_key(a, key);
    if (key == KV_KEY_ENTER) return enter(a);
    if (key == KV_KEY_ESCAPE) {
        if (filter) text[0] = 0;
        a->prompt = KV_PROMPT_NONE;
    } else if (key == KV_KEY_BACKSPACE) {
        while (n > 1 && ((unsigned char)text[n - 1] & 0xc0) == 0x80) n--;
        if (n) text[n - 1] = 0;
    } else if (a->prompt == KV_PROMPT_COMMAND && (key == KV_KEY_UP || key == KV_KEY_DOWN)) {
        recall(a, key == KV_KEY_UP ? -1 : 1);
    } else if (a->prompt == KV_PROMPT_COMMAND && key == KV_KEY_TAB) {
        complete(a);
    } else if (key >= 0x20 && key < 0x100 && n + 1 < cap) {
        text[n] = (char)key;
        text[n + 1] = 0;
    }
    return none;
}
