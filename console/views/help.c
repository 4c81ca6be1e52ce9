/* help.c — the keys, and every verb, from the one list of verbs. */
#include "console/app.h"

#include <stdio.h>

static const char *const keys[][2] = {
    {"1 2 3 4 5", "rollout, receipts, failures, policies, sessions"},
    {"6 7 8 9 0", "tiers, pipelines, rollouts, audit (operators' writes), credits"},
    {"Tab", "the next view; after credits come paused sessions and progress"},
    {"j k, arrows", "move; PgUp PgDn Home End; o loads older rows"},
    {"Enter, Esc", "open a row, then what it rests on; back"},
    {"/ n N", "filter a list, find on a page; next and previous match; Esc clears"},
    {"s S", "sort by the next column; turn the order round"},
    {"space y", "mark rows; copy the id, or the marked ones"},
    {"e", "on a policy: edit in $EDITOR; it is checked, replayed and compared with ACTIVE before y activates"},
    {":", "a view, a verb, or one of the words below; Tab completes, arrows recall"},
    {":drill", "the candidate's drills; with a NAME it runs that one"},
    {":dry-run", "METRIC [THRESHOLD]: another gate on the same samples, without effect"},
    {":fault", "run NAME, arm NAME (on the candidate's next request) or disarm NAME: the failure lab"},
    {":pin :unpin :drop", "on a session: keep what is kept of it, let it go when room is needed, drop it now"},
    {":edit KIND", "edit the admission, fallback or release policy"},
    {":compare PROMPT", "the baseline's tokens beside the candidate's"},
    {":context NAME", "another daemon, by its name in contexts.json"},
    {"Z r q", "freeze the screen; read the list again; quit"},
};

static const char *const words[][2] = {
    {"OFF … FULL", "SHADOW computes beside the baseline and serves nothing, CANARY serves a small share, RAMP a growing one, FULL all that allows it"},
    {"EXACT_BASELINE", "where a rollback leads: every token is the exact model's"},
    {"fenced, durable", "no candidate token leaves any more; the order to go back is on disk"},
    {"NO_DATA", "a gate has fewer samples than it needs; nothing advances on it"},
    {"INCONCLUSIVE", "its bound is not clear of the limit yet"},
    {"omitted mass", "the share of attention that approximate selection left out"},
    {"epoch", "counts changes of what is served; every receipt names its own"},
};

void kv_help_lines(struct kv_lines *l)
{
    kv_lines_add(l, 0, NULL, KV_STYLE_BOLD, "Keys");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) kv_lines_add(l, 1, keys[i][0], KV_STYLE_NORMAL, keys[i][1]);
    kv_lines_add(l, 0, NULL, KV_STYLE_BOLD, "Verbs on the rollout; those without a key after :");
    for (int i = 0; i < KV_N_VERBS; i++) {
        const struct kv_verb *v = &kv_verbs[i];
        char key[24];
        snprintf(key, sizeof key, "%c  %s", v->key ? v->key : ' ', v->name);
        kv_lines_add(l, 1, key, v->danger == KV_VERB_DANGER ? KV_STYLE_BAD : KV_STYLE_NORMAL, v->help);
    }
    kv_lines_add(l, 0, NULL, KV_STYLE_BOLD, "Words");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) kv_lines_add(l, 1, words[i][0], KV_STYLE_NORMAL, words[i][1]);
}
