#include "box/box.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

static const char *const state_names[] = { "pending", "running", "stopping", "gone" };
static_assert(ARRAY_SIZE(state_names) == BOX_STATE_MAX, "a name for each state");
static const char *const op_names[] = { "ensure", "use", "touch", "delete", "expire" };
static_assert(ARRAY_SIZE(op_names) == BOX_OP_MAX, "a name for each operation");

/* Every operation from every state. Delete works from all of them; what waits is asked
 * again after the transition, so 50 PUTs of one id make one sandbox, and a PUT that meets
 * a sandbox on its way out gets a fresh one. */
static const enum box_verdict table[BOX_STATE_MAX][BOX_OP_MAX] = {
        /*                ENSURE    USE       TOUCH     DELETE    EXPIRE   */
        [BOX_PENDING] = { BOX_WAIT, BOX_WAIT, BOX_WAIT, BOX_WAIT, BOX_WAIT },
        [BOX_RUNNING] = { BOX_DO, BOX_DO, BOX_DO, BOX_DO, BOX_DO },
        [BOX_STOPPING] = { BOX_WAIT, BOX_NONE, BOX_NONE, BOX_WAIT, BOX_NONE },
        [BOX_GONE] = { BOX_NONE, BOX_NONE, BOX_NONE, BOX_NONE, BOX_NONE },
};

enum box_verdict box_may(enum box_state state, enum box_op op)
{
        return table[state][op];
}

const char *box_state_name(enum box_state s)
{
        return state_names[s];
}

const char *box_op_name(enum box_op op)
{
        return op_names[op];
}

struct box *box_new(struct str id)
{
        struct box *b = calloc(1, sizeof *b);
        if (!b || !(b->id = malloc(id.n + 1))) {
                free(b);
                return NULL;
        }
        if (id.n)
                memcpy(b->id, id.p, id.n);
        b->id[id.n] = '\0';
        b->id_len = id.n;
        b->refs = 1;
        b->pidfd = -1;
        b->heap_at = SIZE_MAX;
        return b;
}

struct box *box_ref(struct box *b)
{
        b->refs++;
        return b;
}

void box_unref(struct box *b)
{
        if (--b->refs)
                return;
        assert(!b->waiters && !b->death);
        close_fd(&b->pidfd);
        free(b->id);
        free(b);
}
