/* output.h — what leaves kvasir: JSON that no terminal takes for a command, and files that are there whole or not at all. */
#ifndef KV_OUTPUT_H
#define KV_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* To standard output. Jansson writes DEL and U+0080 to U+009F as they are; here they are escaped as other control characters. */
void kv_output_json(const json_t *v, size_t flags);

struct kv_output {
    FILE *f;
    char path[4096], temporary[4096 + 8]; /* temporary is empty where path is no regular file: a device, a pipe */
};

/* A file that takes its name, and the place of what had it, in kv_output_close. false: errno says why. */
bool kv_output_open(struct kv_output *o, const char *path);
/* Closes it; with keep it takes its name, without it nothing is left of it. false: it was to be kept and could not be, errno says why. */
bool kv_output_close(struct kv_output *o, bool keep);

#endif
