/* A slot: the reusable part of a sandbox. Its number fixes the host uid range and the
 * names of its cgroups; its user and network namespaces are kept between sandboxes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "os/cgroup.h"
#include "os/loop.h"
#include "wire/keeper_msg.h"

#define SLOT_UIDS 65536u
#define SANDBOX_UID 1000u /* the ordinary user inside */

enum slot_state {
        SLOT_FREE,  /* nothing is made */
        SLOT_IDLE,  /* cgroups and namespaces are ready for the next sandbox */
        SLOT_BIRTH, /* its agent is setting itself up */
        SLOT_LIVE,
        SLOT_DYING, /* killed, not yet reaped */
        SLOT_STATE_MAX
};

struct slot {
        enum slot_state state;
        unsigned number;
        int user_ns, net_ns; /* -1 while a live sandbox holds them */
        pid_t pid;
        bool ours;           /* our own child: its pid means it until we reap it */
        int pidfd;           /* while in birth */
        uint64_t cookie;
        struct cg_limits limits; /* as last written to its cgroups */
        struct source src;   /* birth: the ready pipe; dying: the pidfd */
        unsigned next_idle;
};

/* What all slots share. */
struct slots {
        struct slot *all;
        unsigned count, next_fresh, idle_head, idle_count;
        struct cg cg;
        int proc_fd, own_net_fd;
        uid_t uid_base;
        bool privileged, have_baseline;
};

int slots_init(struct slots *s, unsigned count, struct err *e);
/* An idle slot, or a fresh one made ready. */
int slot_take(struct slots *s, struct slot **ret, struct err *e);
/* Writes the limits that differ from what its cgroups have. */
int slot_limit(struct slots *s, struct slot *slot, const struct cg_limits *l, struct err *e);
/* After its sandbox is gone: idle again, or free when enough are idle. */
void slot_release(struct slots *s, struct slot *slot);
/* Nothing of it stays. */
void slot_free(struct slots *s, struct slot *slot);
void slots_free_idle(struct slots *s);
/* Opens the namespaces of the slot's live agent, so that they outlive it. */
void slot_keep_namespaces(struct slots *s, struct slot *slot, int pidfd);
/* Ids of the slot in the keeper's user namespace. */
uid_t slot_base_uid(const struct slots *s, const struct slot *slot);
uid_t slot_user_uid(const struct slots *s, const struct slot *slot);
