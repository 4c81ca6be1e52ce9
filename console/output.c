/* output.c — JSON on standard output; files by a temporary one beside them. */
#include "console/output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { C1_LEAD = 0xc2, DEL = 0x7f }; /* the first of the two bytes of U+0080 to U+00BF */

/* The parts that jansson hands over may end between two bytes of a character. */
static int put_json(const char *text, size_t n, void *arg)
{
    bool *lead = arg;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        bool c1 = *lead && c < 0xa0;
        if (*lead && !c1) putchar(C1_LEAD);
        *lead = !*lead && c == C1_LEAD;
        if (c1 || c == DEL) printf("\\u%04X", c);
        else if (!*lead) putchar(c);
    }
    return 0;
}

void kv_output_json(const json_t *v, size_t flags)
{
    bool lead = false;
    json_dump_callback(v, put_json, &lead, flags);
}

/* Where a link leads, so that the file it names is replaced and the link stays. */
static bool follow(struct kv_output *o, const char *path)
{
    char *real = realpath(path, NULL);
    int n = snprintf(o->path, sizeof o->path, "%s", real ? real : path);
    free(real);
    errno = ENAMETOOLONG;
    return n < (int)sizeof o->path;
}

bool kv_output_open(struct kv_output *o, const char *path)
{
    struct stat s;
    *o = (struct kv_output){0};
    bool there = !stat(path, &s);
    if (there && !S_ISREG(s.st_mode)) return (o->f = fopen(path, "wb")) != NULL;
    if (!follow(o, path) || (there && access(o->path, W_OK))) return false;
    snprintf(o->temporary, sizeof o->temporary, "%s.XXXXXX", o->path);
    mode_t mask = umask(077);
    umask(mask);
    int fd = mkstemp(o->temporary);
    if (fd < 0) return o->temporary[0] = 0, false;
    fchmod(fd, there ? s.st_mode & 0777 : 0666 & ~mask);
    if ((o->f = fdopen(fd, "wb"))) return true;
    close(fd);
    remove(o->temporary);
    return false;
}

bool kv_output_close(struct kv_output *o, bool keep)
{
    bool good = !ferror(o->f);
    int why = good ? 0 : EIO;
    if (fclose(o->f)) good = false, why = errno;
    if (good && keep && *o->temporary && rename(o->temporary, o->path)) good = false, why = errno;
    if (*o->temporary && !(good && keep)) remove(o->temporary);
    errno = why;
    return good || !keep;
}
