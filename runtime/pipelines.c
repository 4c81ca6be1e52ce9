/* pipelines.c — the one list of pipelines: every published system's ten contract fields, its selector, placement and parameters.
 *
 * A row with built = true runs in the engine; the others are registered and refused with NOT_BUILT. Provenance says where the
 * row's fields and defaults come from: paper, code, reconstruction (only outlines are published) or house. */
#include "runtime/kvasir.h"

#include "runtime/selection/methods.h"

#include <string.h>

/* ---------------------------------------------------------------- parameters of pipelines without a selector in this tree */

static const struct kv_param_spec flexgen_params[] = {
    {"cache_device_percent", "float", 100, 0, 100, "percent", "code: policy cg", "share of K/V kept on the device"},
    {"cache_host_percent", "float", 0, 0, 100, "percent", "code: policy cc", "share of K/V kept in host memory; the rest goes to disk"},
    {"weights_device_percent", "float", 100, 0, 100, "percent", "code: policy wg", "share of weights kept on the device"},
    {"batches", "int", 1, 1, 64, "batches", "code: num_batches", "batches of one block that share a loaded weight"},
    {"host_attention", "bool", 0, 0, 1, "", "paper 3.3", "compute attention where the cache is"},
};
static const struct kv_param_spec cached_attention_params[] = {
    {"read_buffer_bytes", "int", 67108864, 0, 1e12, "bytes", "house", "upper bound of the layerwise read buffer"},
    {"write_buffer_bytes", "int", 67108864, 0, 1e12, "bytes", "house", "upper bound of the asynchronous save buffer"},
};
static const struct kv_param_spec infercept_params[] = {
    {"saturation_tokens", "int", 512, 1, 65536, "tokens", "code: saturation 512", "recompute chunks stay under this many tokens with the running batch"},
    {"preserve_below_s", "float", 4, 0, 3600, "seconds", "code: policy H", "expected pauses shorter than this are preserved"},
    {"discard_above_s", "float", 7, 0, 3600, "seconds", "code: policy H", "expected pauses longer than this are not preserved"},
};
static const struct kv_param_spec headinfer_params[] = {
    {"head_groups", "int", 1, 1, 256, "groups", "paper: 1 group to 500K rows", "groups a layer's K/V heads are moved in"},
};
static const struct kv_param_spec neo_params[] = {
    {"device_high_water", "float", 0.95, 0.1, 1, "share", "code: swap-in below 0.95", "share of device blocks above which requests are placed on the host"},
};
static const struct kv_param_spec sparf_params[] = {
    {"channel_share", "float", 0.125, 0.01, 1, "share", "paper: 1/8", "share of the query's channels that are read"},
    {"row_share", "float", 0.125, 0.01, 1, "share", "paper: 1/8", "share of rows that are read whole"},
};
static const struct kv_param_spec retrieval_attention_params[] = {
    {"sink_rows", "int", 128, 0, 65536, "rows", "paper", "first rows, always attended"},
    {"local_rows", "int", 512, 0, 65536, "rows", "paper", "last rows, always attended"},
    {"top_rows", "int", 100, 1, 65536, "rows", "paper", "rows taken from the graph per query head"},
};
static const struct kv_param_spec squeezed_params[] = {
    {"cluster_share", "float", 0.05, 0.001, 1, "share", "paper: 5 %", "clusters per row of the fixed prefix"},
    {"quantile", "float", 0.7, 0, 1, "share", "paper: 0.5, 0.7, 0.8, 0.9", "share of keys under the calibrated threshold"},
    {"observation_rows", "int", 100, 1, 4096, "rows", "paper", "last rows of the prefix that calibrate and are always attended"},
};
static const struct kv_param_spec em_llm_params[] = {
    {"gamma", "float", 1, 0, 10, "deviations", "code: configs", "surprise above the window's mean that starts an event"},
    {"min_event_rows", "int", 8, 1, 4096, "rows", "code", "events closer than this are merged"},
    {"max_event_rows", "int", 128, 1, 65536, "rows", "code", "longest event"},
    {"memory_rows", "int", 2048, 1, 1048576, "rows", "code: Mistral", "rows of events added to the context"},
    {"contiguity", "float", 0.3, 0, 1, "share", "code", "share of memory_rows for temporal neighbours"},
};
static const struct kv_param_spec scout_params[] = {
    {"block_rows", "int", 32, 1, 1024, "rows", "third-party notes", "rows per block"},
    {"budget_rows", "int", 2048, 32, 1048576, "rows", "third-party notes", "rows attended"},
    {"host_share", "float", 0.12, 0, 1, "share", "third-party notes", "host share of attention above which resident blocks are refreshed"},
};
static const struct kv_param_spec icecache_params[] = {
    {"page_rows", "int", 16, 1, 1024, "rows", "code: README", "rows per leaf page"},
    {"budget_pages", "int", 16, 1, 65536, "pages", "code", "pages attended"},
    {"sink_pages", "int", 2, 0, 1024, "pages", "code", "first pages, always attended"},
    {"local_pages", "int", 2, 2, 1024, "pages", "code", "last pages, always attended"},
};
static const struct kv_param_spec kvdrive_params[] = {
    {"chunk_rows", "int", 4, 1, 1024, "rows", "third-party notes", "rows per chunk"},
    {"window", "int", 2, 1, 64, "queries", "third-party notes: batch 1", "queries whose chunks stay on the device"},
};
static const struct kv_param_spec retroinfer_params[] = {
    {"sink_rows", "int", 4, 0, 4096, "rows", "paper", "first rows, always attended"},
    {"local_rows", "int", 64, 0, 65536, "rows", "paper", "last rows, always attended"},
    {"rows_per_cluster", "int", 16, 1, 4096, "rows", "paper", "rows a cluster holds on average"},
    {"retrieval_share", "float", 0.018, 0, 1, "share", "paper", "share of clusters attended exactly"},
    {"estimation_share", "float", 0.232, 0, 1, "share", "paper", "share of clusters estimated from their centroid"},
};

#define PARAMS(array) .params = array, .n_params = sizeof array / sizeof *array

/* ---------------------------------------------------------------- rows */

static const struct kv_pipeline rows[] = {
    /* the baseline and the plain exact placement */
    {.name = "resident", .title = "Resident baseline", .section = "0x02", .support = "all rows", .representation = "as computed",
     .tier = "host", .unit = "64-row block", .index = "block table", .update_phase = "append", .compute_site = "device",
     .fallback = "none needed", .workload = "any", .exactness = KV_EXACT, .placement = "resident", .provenance = "house", .built = true},
    {.name = "layerwise", .title = "Layerwise offload, two staging slots", .section = "0x03D", .support = "all rows",
     .representation = "as computed", .tier = "host → device", .unit = "layer of one sequence", .index = "block table",
     .update_phase = "append", .compute_site = "device", .fallback = "wait, then resident", .workload = "long contexts beyond the device",
     .exactness = KV_EXACT, .placement = "layerwise", .provenance = "house", .built = true},
    /* exact systems */
    {.name = "flexgen", .title = "FlexGen", .section = "0x02D", .support = "all rows", .representation = "as computed",
     .tier = "device/host/disk", .unit = "tensor block", .index = "block table", .update_phase = "offline policy, per step",
     .compute_site = "device; host attention where the cache is", .fallback = "wait, reject", .workload = "throughput batches",
     .exactness = KV_EXACT, .placement = "blocked", .provenance = "code", PARAMS(flexgen_params)},
    {.name = "cachedattention", .title = "CachedAttention", .section = "0x04H–K", .support = "all rows",
     .representation = "rows before rotation", .tier = "device/host/disk", .unit = "session per layer", .index = "session directory",
     .update_phase = "turn end", .compute_site = "device", .fallback = "recompute", .workload = "multi-turn sessions",
     .exactness = KV_EXACT, .placement = "session", .provenance = "paper", PARAMS(cached_attention_params)},
    {.name = "infercept", .title = "InferCept", .section = "0x04L–N", .support = "all rows", .representation = "as computed",
     .tier = "device/host/tokens", .unit = "request chunk", .index = "pause manifest", .update_phase = "revised per interruption",
     .compute_site = "device", .fallback = "recompute in chunks", .workload = "requests paused by tool calls",
     .exactness = KV_EXACT, .placement = "interrupt", .provenance = "code", PARAMS(infercept_params)},
    {.name = "headinfer", .title = "HeadInfer", .section = "0x04U", .support = "all rows", .representation = "as computed",
     .tier = "host → device", .unit = "head group", .index = "head table", .update_phase = "append", .compute_site = "device",
     .fallback = "layerwise, wait", .workload = "one very long context", .exactness = KV_EXACT, .placement = "headwise",
     .provenance = "code", PARAMS(headinfer_params)},
    {.name = "neo", .title = "NEO", .section = "0x04V", .support = "all rows", .representation = "as computed",
     .tier = "device or host, whole", .unit = "request", .index = "block table", .update_phase = "per iteration",
     .compute_site = "host attention + device", .fallback = "device-only schedule", .workload = "large batches",
     .exactness = KV_EXACT, .placement = "host-request", .provenance = "code", PARAMS(neo_params)},
    {.name = "instinfer-dense", .title = "InstInfer, dense mode", .section = "0x04X", .support = "all rows",
     .representation = "keys stored twice", .tier = "disk engine", .unit = "flash page", .index = "dual K layout",
     .update_phase = "append", .compute_site = "storage", .fallback = "promote", .workload = "offline batches",
     .exactness = KV_EXACT, .placement = "in-storage", .provenance = "paper"},
    /* approximate systems */
    {.name = "instinfer-sparf", .title = "InstInfer, SparF mode", .section = "0x04X", .support = "top channels, then top rows, and the mean",
     .representation = "keys stored twice", .tier = "disk engine", .unit = "page, then row", .index = "dual K layout",
     .update_phase = "append", .compute_site = "storage", .fallback = "exact promote", .workload = "offline batches",
     .exactness = KV_APPROXIMATE, .placement = "in-storage", .provenance = "paper", PARAMS(sparf_params)},
    {.name = "sparq", .title = "SparQ", .section = "0x05E–I", .support = "rows of highest partial-channel score",
     .representation = "as computed", .tier = "device/host", .unit = "row", .index = "none; running mean of values",
     .update_phase = "append", .compute_site = "device", .fallback = "widen, then exact fetch", .workload = "bandwidth-bound decode",
     .exactness = KV_APPROXIMATE, .placement = "resident", .selector = "sparq", .provenance = "paper", .built = true,
     PARAMS(kv_selector_sparq_params)},
    {.name = "quest", .title = "Quest", .section = "0x05J–M", .support = "pages of highest bound", .representation = "as computed",
     .tier = "device/host", .unit = "page", .index = "channelwise extrema per page", .update_phase = "append", .compute_site = "device",
     .fallback = "widen pages, then exact", .workload = "long-context decode", .exactness = KV_APPROXIMATE, .placement = "resident",
     .selector = "quest", .provenance = "paper", .built = true, PARAMS(kv_selector_quest_params)},
    {.name = "infinigen", .title = "InfiniGen", .section = "0x06", .support = "rows within alpha of the best partial score",
     .representation = "as computed", .tier = "host", .unit = "row", .index = "partial keys in a skewed basis",
     .update_phase = "offline, prefill, append", .compute_site = "device", .fallback = "exact fetch", .workload = "offloaded decode",
     .exactness = KV_APPROXIMATE, .placement = "resident", .selector = "infinigen", .provenance = "paper", .built = true,
     PARAMS(kv_selector_infinigen_params)},
    {.name = "pqcache", .title = "PQCache", .section = "0x07F", .support = "sink, window and rows of best quantised score",
     .representation = "as computed", .tier = "host rows, device codebooks", .unit = "row", .index = "product-quantisation codes",
     .update_phase = "prefill, window exit", .compute_site = "device", .fallback = "widen, then exact", .workload = "long prompts",
     .exactness = KV_APPROXIMATE, .placement = "resident", .selector = "pqcache", .provenance = "code", .built = true,
     PARAMS(kv_selector_pqcache_params)},
    {.name = "retrievalattention", .title = "RetrievalAttention", .section = "0x07, 0x07G", .support = "sink, window and graph hits per query head",
     .representation = "as computed", .tier = "host", .unit = "row", .index = "query-bridged graph", .update_phase = "prefill",
     .compute_site = "host + device, merged", .fallback = "escalate, then exact", .workload = "very long prompts",
     .exactness = KV_APPROXIMATE, .placement = "partition", .provenance = "paper", PARAMS(retrieval_attention_params)},
    {.name = "squeezedattention", .title = "SqueezedAttention", .section = "0x07H", .support = "clusters of a fixed prefix over a threshold",
     .representation = "as computed", .tier = "device/host", .unit = "cluster", .index = "centroids and labels", .update_phase = "offline",
     .compute_site = "device, ragged", .fallback = "dense prefix", .workload = "one fixed prefix, many questions",
     .exactness = KV_APPROXIMATE, .placement = "resident", .provenance = "code", PARAMS(squeezed_params)},
    {.name = "magicpig", .title = "MagicPIG", .section = "0x07I", .support = "sampled rows with inclusion weights",
     .representation = "keys centred by their mean", .tier = "host", .unit = "sampled row", .index = "hash tables", .update_phase = "prefill; appended rows stay exact",
     .compute_site = "device hash, host attention", .fallback = "exact", .workload = "diffuse attention",
     .exactness = KV_APPROXIMATE, .placement = "resident", .selector = "magicpig", .provenance = "code", .built = true,
     PARAMS(kv_selector_magicpig_params)},
    {.name = "infllm", .title = "InfLLM", .section = "0x07L", .support = "sink, window and units of best representatives",
     .representation = "as computed; the paper's common distant position is not applied", .tier = "host + device unit cache",
     .unit = "fixed unit", .index = "representative keys", .update_phase = "unit seal", .compute_site = "device", .fallback = "widen, exact",
     .workload = "streams beyond the trained length", .exactness = KV_APPROXIMATE, .placement = "resident", .selector = "infllm", .provenance = "code", .built = true,
     PARAMS(kv_selector_infllm_params)},
    {.name = "em-llm", .title = "EM-LLM", .section = "0x07M", .support = "events by similarity and by neighbourhood",
     .representation = "unrotated keys", .tier = "host/disk", .unit = "event", .index = "event vectors", .update_phase = "surprise and refinement, online",
     .compute_site = "device", .fallback = "token cap, then exact", .workload = "streams beyond the trained length",
     .exactness = KV_APPROXIMATE, .placement = "recall", .provenance = "code", PARAMS(em_llm_params)},
    {.name = "clusterkv", .title = "ClusterKV", .section = "0x07N", .support = "clusters by centroid score, the last one trimmed",
     .representation = "as computed", .tier = "host", .unit = "cluster", .index = "centroids and member lists", .update_phase = "prefill, every 320 rows",
     .compute_site = "device", .fallback = "widen, exact", .workload = "long-context decode", .exactness = KV_APPROXIMATE,
     .placement = "resident", .selector = "clusterkv", .provenance = "code", .built = true,
     PARAMS(kv_selector_clusterkv_params)},
    {.name = "scoutattention", .title = "ScoutAttention", .section = "0x0AD", .support = "blocks by digest", .representation = "as computed",
     .tier = "device/host", .unit = "block", .index = "block digests", .update_phase = "periodic recall", .compute_site = "host + device, layer ahead",
     .fallback = "exact", .workload = "long-context decode", .exactness = KV_APPROXIMATE, .placement = "collaborative",
     .provenance = "reconstruction", PARAMS(scout_params)},
    {.name = "icecache", .title = "IceCache", .section = "0x0AD", .support = "leaf pages of a semantic tree", .representation = "as computed",
     .tier = "device/host", .unit = "page leaf", .index = "hierarchy", .update_phase = "dynamic append", .compute_site = "device",
     .fallback = "widen, exact", .workload = "long generations", .exactness = KV_APPROXIMATE, .placement = "resident",
     .provenance = "code", PARAMS(icecache_params)},
    {.name = "kvdrive", .title = "KVDrive", .section = "0x0AD", .support = "clustered chunks in a sliding window", .representation = "as computed",
     .tier = "device/host/disk", .unit = "chunk", .index = "clusters", .update_phase = "per query", .compute_site = "device/host",
     .fallback = "exact", .workload = "contexts beyond host memory", .exactness = KV_APPROXIMATE, .placement = "joint",
     .provenance = "reconstruction", PARAMS(kvdrive_params)},
    {.name = "retroinfer", .title = "RetroInfer / WAVE", .section = "0x07G2", .support = "steady and retrieval zones exact, estimation zone by centroid",
     .representation = "as computed", .tier = "device/host", .unit = "cluster", .index = "wave index", .update_phase = "every 1024 rows",
     .compute_site = "device", .fallback = "exact", .workload = "long-context decode", .exactness = KV_APPROXIMATE,
     .placement = "resident", .provenance = "code", PARAMS(retroinfer_params)},
};

size_t kv_pipeline_count(void) { return sizeof rows / sizeof *rows; }

const struct kv_pipeline *kv_pipeline_at(size_t i) { return i < kv_pipeline_count() ? &rows[i] : NULL; }

const struct kv_pipeline *kv_pipeline_find(const char *name)
{
    for (size_t i = 0; name && i < kv_pipeline_count(); i++)
        if (!strcmp(rows[i].name, name)) return &rows[i];
    return NULL;
}
