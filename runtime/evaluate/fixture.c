/* fixture.c — look-ups in a flattened fixture, and the list of validators. */
#include "runtime/evaluate/fixture.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PATH_MAX_CHARS = 160 };

static const struct kv_fixture_field *find(const struct kv_fixture *f, const char *path)
{
    for (size_t i = 0; i < f->n; i++)
        if (!strcmp(f->field[i].path, path)) return &f->field[i];
    return NULL;
}

static const struct kv_fixture_field *vfind(const struct kv_fixture *f, char path[PATH_MAX_CHARS], const char *format, va_list ap)
{
    vsnprintf(path, PATH_MAX_CHARS, format, ap);
    return find(f, path);
}

const struct kv_fixture_field *kv_fixture_find(const struct kv_fixture *f, const char *path, ...)
{
    char full[PATH_MAX_CHARS];
    va_list ap;
    va_start(ap, path);
    const struct kv_fixture_field *field = vfind(f, full, path, ap);
    va_end(ap);
    return field;
}

/* NULL, and the reader's status set, unless the field is there and of this kind. */
static const struct kv_fixture_field *want(struct kv_fixture_reader *r, enum kv_fixture_kind kind, const char *format, va_list ap)
{
    static const char *const names[] = {"null", "number", "text", "bool", "array", "object"};
    char path[PATH_MAX_CHARS];
    const struct kv_fixture_field *f = vfind(r->fixture, path, format, ap);
    if (f && f->kind == kind) return f;
    if (r->status == KV_OK) {
        r->status = f ? KV_BAD_ARGUMENT : KV_NOT_FOUND;
        kv_fail(r->err, r->status, path, f ? "the field is not a %s" : "the field is missing; a %s was expected", names[kind]);
    }
    return NULL;
}

#define WANT(kind)                                                                                                     \
    va_list ap;                                                                                                        \
    va_start(ap, path);                                                                                                \
    const struct kv_fixture_field *f = want(r, kind, path, ap);                                                        \
    va_end(ap)

double kv_fixture_number(struct kv_fixture_reader *r, const char *path, ...)
{
    WANT(KV_FIXTURE_NUMBER);
    return f ? f->number : 0;
}

int64_t kv_fixture_integer(struct kv_fixture_reader *r, const char *path, ...)
{
    WANT(KV_FIXTURE_NUMBER);
    if (!f) return 0;
    if (f->number == floor(f->number) && fabs(f->number) <= 9007199254740992.0) return (int64_t)f->number;
    if (r->status == KV_OK) r->status = kv_fail(r->err, KV_BAD_ARGUMENT, f->path, "the field is not an integer");
    return 0;
}

bool kv_fixture_bool(struct kv_fixture_reader *r, const char *path, ...)
{
    WANT(KV_FIXTURE_BOOL);
    return f && f->number != 0;
}

const char *kv_fixture_text(struct kv_fixture_reader *r, const char *path, ...)
{
    WANT(KV_FIXTURE_TEXT);
    return f ? f->text : "";
}

int32_t kv_fixture_count(struct kv_fixture_reader *r, int32_t max, const char *path, ...)
{
    WANT(KV_FIXTURE_ARRAY);
    if (!f) return 0;
    if (f->number <= max) return (int32_t)f->number;
    if (r->status == KV_OK) r->status = kv_fail(r->err, KV_BAD_ARGUMENT, f->path, "the array holds more than %d", (int)max);
    return 0;
}

static const struct {
    const char *section;
    kv_fixture_validator *validate;
} sections[] = {
#define KV_FIXTURE(section, function) {section, function},
#include "runtime/evaluate/fixtures.def"
#undef KV_FIXTURE
};

kv_fixture_validator *kv_fixture_validator_find(const char *section)
{
    for (size_t i = 0; i < kv_fixture_section_count(); i++)
        if (!strcmp(sections[i].section, section)) return sections[i].validate;
    return NULL;
}

size_t kv_fixture_section_count(void)
{
    return sizeof sections / sizeof *sections;
}

const char *kv_fixture_section_at(size_t i)
{
    return i < kv_fixture_section_count() ? sections[i].section : NULL;
}
