/* disk_spare.c — one segment ahead of need: its file, its bytes and its name have reached the disk before a group has to wait for them. A run that dies
 * leaves a segment without extents, which the next start unlinks. */
#include "runtime/residency/disk_state.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static void make(struct disk *d)
{
    struct spare *p = &d->spare;
    enum kv_status s = kv_disk_make_segment(d, p->segment.number, &p->segment);
    if (s == KV_OK && kv_disk_sync(d, p->segment.fd) == KV_OK) {
        kv_disk_sync_folder(d);
        p->segment.named = true;
    }
    p->status = s;
}

static void *spare_main(void *arg)
{
    struct disk *d = arg;
    struct spare *p = &d->spare;
    prctl(PR_SET_NAME, "kv-spare");
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stop && p->state != SPARE_ASKED) pthread_cond_wait(&p->changed, &p->lock);
        if (p->state != SPARE_ASKED) break;
        pthread_mutex_unlock(&p->lock);
        make(d); /* while it is asked for, nobody else looks at it */
        pthread_mutex_lock(&p->lock);
        p->state = SPARE_MADE;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

enum kv_status kv_disk_spare_start(struct disk *d)
{
    struct spare *p = &d->spare;
    sigset_t all, before;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    p->started = pthread_create(&p->thread, NULL, spare_main, d) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return p->started ? KV_OK : KV_OUT_OF_MEMORY;
}

void kv_disk_spare_ask(struct disk *d)
{
    struct spare *p = &d->spare;
    pthread_mutex_lock(&p->lock);
    if (p->state == SPARE_NONE && kv_disk_room(d) == KV_OK) {
        p->state = SPARE_ASKED;
        p->segment.number = d->next_number++;
        d->used += d->segment_bytes;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
}

bool kv_disk_spare_take(struct disk *d, struct segment *out)
{
    struct spare *p = &d->spare;
    pthread_mutex_lock(&p->lock);
    bool asked = p->state != SPARE_NONE;
    while (p->state == SPARE_ASKED) pthread_cond_wait(&p->changed, &p->lock);
    p->state = SPARE_NONE;
    bool made = asked && p->status == KV_OK;
    if (made) *out = p->segment;
    else if (asked) d->used -= d->segment_bytes;
    pthread_mutex_unlock(&p->lock);
    return made;
}

void kv_disk_spare_stop(struct disk *d)
{
    struct spare *p = &d->spare;
    struct segment s;
    char name[600];
    if (!p->started) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL); /* what was asked for is made */
    if (kv_disk_spare_take(d, &s)) {
        kv_disk_segment_name(d, s.number, name, sizeof name);
        (void)d->io->unlink(name);
        close(s.fd);
    }
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
}
