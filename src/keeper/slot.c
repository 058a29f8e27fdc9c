#include "keeper/slot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "os/netns.h"
#include "os/sys.h"
#include "os/userns.h"

/* Idle slots cost kernel memory (about 300 KiB each); a burst deeper than this makes new. */
#define MAX_IDLE 32
#define NO_SLOT UINT32_MAX

int slots_init(struct slots *s, unsigned count, struct err *e)
{
        size_t size = count * sizeof *s->all;
        s->all = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (s->all == MAP_FAILED)
                return fail_host(e, -ENOMEM, "no memory for %u slots", count);
        /* Agents are forks of this process and know nothing of other slots: not copying
         * this table makes each fork cheaper. */
        (void)madvise(s->all, size, MADV_DONTFORK);
        s->count = count;
        s->idle_head = NO_SLOT;
        for (unsigned i = 0; i < count; i++)
                s->all[i] = (struct slot){ .number = i, .user_ns = -1, .net_ns = -1, .pidfd = -1, .src.fd = -1 };
        return 0;
}

uid_t slot_base_uid(const struct slots *s, const struct slot *slot)
{
        return s->privileged ? s->uid_base + slot->number * SLOT_UIDS : 0;
}

uid_t slot_user_uid(const struct slots *s, const struct slot *slot)
{
        return s->privileged ? slot_base_uid(s, slot) + SANDBOX_UID : 0;
}

static int make_namespaces(struct slots *s, struct slot *slot, struct err *e)
{
        struct ns_map map = s->privileged ? (struct ns_map){ 0, slot_base_uid(s, slot), SLOT_UIDS }
                                          : (struct ns_map){ SANDBOX_UID, 0, 1 };
        close_fd(&slot->user_ns);
        close_fd(&slot->net_ns);
        int r = userns_make_pair(s->proc_fd, &map, &slot->user_ns, &slot->net_ns, e);
        if (r == 0 && !s->have_baseline)
                s->have_baseline = netns_baseline(s->proc_fd, s->own_net_fd, slot->net_ns) == 0;
        return r;
}

static int make_fresh(struct slots *s, struct slot *slot, struct err *e)
{
        int r = cg_slot_make(&s->cg, slot->number, slot_base_uid(s, slot), e);
        if (r == 0)
                r = make_namespaces(s, slot, e);
        if (r < 0)
                slot_free(s, slot);
        return r;
}

int slot_take(struct slots *s, struct slot **ret, struct err *e)
{
        if (s->idle_head != NO_SLOT) {
                struct slot *slot = &s->all[s->idle_head];
                s->idle_head = slot->next_idle;
                s->idle_count--;
                *ret = slot;
                return 0;
        }
        /* Round robin, so that a number (and its uids) rests as long as possible. */
        for (unsigned tried = 0; tried < s->count; tried++) {
                struct slot *slot = &s->all[s->next_fresh];
                s->next_fresh = (s->next_fresh + 1) % s->count;
                if (slot->state != SLOT_FREE)
                        continue;
                int r = make_fresh(s, slot, e);
                if (r == 0)
                        *ret = slot;
                return r;
        }
        return fail_host(e, -EAGAIN, "all %u slots for sandboxes are taken", s->count);
}

int slot_limit(struct slots *s, struct slot *slot, const struct cg_limits *l, struct err *e)
{
        if (memcmp(&slot->limits, l, sizeof *l) == 0)
                return 0;
        slot->limits = (struct cg_limits){ 0 };
        int r = cg_slot_limit(&s->cg, slot->number, l, e);
        if (r == 0)
                slot->limits = *l;
        return r;
}

void slot_free(struct slots *s, struct slot *slot)
{
        close_fd(&slot->user_ns);
        close_fd(&slot->net_ns);
        if (cg_slot_populated(&s->cg, slot->number))
                (void)cg_slot_kill(&s->cg, slot->number);
        (void)cg_slot_remove(&s->cg, slot->number);
        slot->limits = (struct cg_limits){ 0 };
        slot->ours = false;
        slot->state = SLOT_FREE;
}

static int open_namespace(const struct slots *s, const struct slot *slot, int pidfd, unsigned long ask, const char *name)
{
        char path[64];
        int fd = ioctl(pidfd, ask, 0);
        if (fd >= 0)
                return fd;
        (void)snprintf(path, sizeof path, "%d/ns/%s", slot->pid, name);
        return openat(s->proc_fd, path, O_RDONLY | O_CLOEXEC);
}

void slot_keep_namespaces(struct slots *s, struct slot *slot, int pidfd)
{
        slot->user_ns = open_namespace(s, slot, pidfd, PIDFD_GET_USER_NAMESPACE, "user");
        slot->net_ns = open_namespace(s, slot, pidfd, PIDFD_GET_NET_NAMESPACE, "net");
}

void slot_release(struct slots *s, struct slot *slot)
{
        slot->pid = 0;
        slot->ours = false;
        bool clean = s->idle_count < MAX_IDLE && slot->user_ns >= 0 && slot->net_ns >= 0 &&
                     !cg_slot_populated(&s->cg, slot->number) && cg_slot_clean(&s->cg, slot->number) == 0 &&
                     netns_untouched(s->proc_fd, s->own_net_fd, slot->net_ns);
        if (!clean) {
                slot_free(s, slot);
                return;
        }
        slot->state = SLOT_IDLE;
        slot->next_idle = s->idle_head;
        s->idle_head = slot->number;
        s->idle_count++;
}

void slots_free_idle(struct slots *s)
{
        for (unsigned i = 0; i < s->count; i++)
                if (s->all[i].state == SLOT_IDLE)
                        slot_free(s, &s->all[i]);
        s->idle_head = NO_SLOT;
        s->idle_count = 0;
}
