/* Links to a fake agent: a listening socket in a temporary working directory, both ends in
 * this thread, so that every byte is sent when the test means it. */
#include "engine/link.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/limits.h"
#include "check.h"

static char dir[] = "/tmp/cloche-test-link-XXXXXX";
static uv_loop_t loop;
static int listener, peer;

static struct {
        unsigned frames, ends, drains, moves;
        int code;
        struct buf story; /* types and payloads in order */
        bool pause_each, resume_at_once, close_in_frame, close_in_end, done_in_frame;
} seen;

static void on_frame(struct link *l, const struct frame *f, void *user)
{
        CHECK(user == &seen);
        seen.frames++;
        buf_addf(&seen.story, "%s:%.*s ", frame_name(f->type), (int)(f->payload.n < 40 ? f->payload.n : 40), f->payload.p);
        if (seen.frames > 100000)
                abort();
        if (seen.pause_each)
                link_pause(l);
        if (seen.resume_at_once)
                link_resume(l);
        if (seen.close_in_frame) {
                link_close(l);
                link_close(l);
        }
        if (seen.done_in_frame)
                link_done(l);
        CHECK(f->payload.n == 0 || f->payload.p[f->payload.n - 1] != 0x55); /* still readable */
}

static void on_end(struct link *l, int code, void *user)
{
        (void)user;
        seen.ends++;
        seen.code = code;
        if (seen.close_in_end)
                link_close(l);
}

static void on_drain(struct link *l, void *user)
{
        (void)l;
        (void)user;
        seen.drains++;
}

static void on_moved(struct link *l, void *user)
{
        (void)l;
        (void)user;
        seen.moves++;
}

static const struct link_handlers handlers = { on_frame, on_end, on_drain, on_moved };

static void turn(void)
{
        for (int i = 0; i < 20; i++)
                (void)uv_run(&loop, UV_RUN_NOWAIT);
}

static struct link *opened_at(const char *name)
{
        struct link *l = NULL;
        struct err e = { 0 };
        struct buf request = { 0 };
        buf_free(&seen.story);
        memset(&seen, 0, sizeof seen);
        frame_add(&request, FRAME_PING, "hi", 2);
        CHECK_INT(link_open(&loop, name, &request, &handlers, &seen, &l, &e), 0);
        CHECK(request.data == NULL); /* taken over */
        return l;
}

static struct link *opened(void)
{
        return opened_at("sbx-test");
}

static void hear_request(void)
{
        char got[64];
        CHECK(read(peer, got, sizeof got) == FRAME_HEAD_BYTES + 2);
        CHECK(memcmp(got + FRAME_HEAD_BYTES, "hi", 2) == 0);
}

/* -1: nobody called, the request came over a parked connection. */
static int accepted(void)
{
        return accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

static struct link *connected(void)
{
        struct link *l = opened();
        peer = accepted();
        CHECK(peer >= 0);
        hear_request();
        return l;
}

static void finish(struct link *l)
{
        if (l)
                link_close(l);
        if (peer >= 0)
                (void)close(peer);
        turn();
}

static void send_peer(const void *p, size_t n)
{
        CHECK(send(peer, p, n, MSG_NOSIGNAL) == (ssize_t)n);
}

static void two_frames(struct buf *b)
{
        frame_add(b, FRAME_STDOUT, "one", 3);
        frame_add(b, FRAME_EXIT, NULL, 0);
        frame_add(b, FRAME_STDERR, "three", 5);
}

static void test_partial_frames(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct link *l = connected();
        two_frames(&b);
        for (size_t i = 0; i < b.len; i++) {
                send_peer(b.data + i, 1);
                turn();
        }
        CHECK_STR(buf_cstr(&seen.story), "stdout:one exit: stderr:three ");
        send_peer(b.data, b.len); /* and all at once */
        turn();
        CHECK_INT(seen.frames, 6);
        CHECK_INT(seen.ends, 0);
        finish(l);
        CHECK_INT(seen.ends, 0); /* we closed it: no callback */
}

static void test_big_frame(void)
{
        struct link *l = connected();
        size_t n = FRAME_MAX_PAYLOAD;
        char *big = malloc(n);
        unsigned char head[FRAME_HEAD_BYTES];
        memset(big, 'b', n);
        frame_head(head, FRAME_DATA, (uint32_t)n);
        send_peer(head, sizeof head);
        for (size_t at = 0; at < n;) {
                ssize_t w = send(peer, big + at, n - at, MSG_NOSIGNAL);
                if (w > 0)
                        at += (size_t)w;
                turn();
        }
        turn();
        CHECK_INT(seen.frames, 1);
        CHECK_INT(seen.ends, 0);
        free(big);
        finish(l);
}

static void test_pause_and_resume(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct link *l = connected();
        two_frames(&b);
        seen.pause_each = true;
        send_peer(b.data, b.len);
        turn();
        CHECK_INT(seen.frames, 1);
        link_resume(l);
        CHECK_INT(seen.frames, 2); /* what is here already comes at once */
        turn();
        CHECK_INT(seen.frames, 2);
        (void)close(peer);
        peer = -1;
        turn();
        CHECK_INT(seen.ends, 0); /* nothing is read while it pauses, also not the end */
        link_resume(l);
        CHECK_INT(seen.frames, 3);
        seen.pause_each = false;
        link_resume(l);
        turn();
        CHECK_STR(buf_cstr(&seen.story), "stdout:one exit: stderr:three ");
        CHECK(seen.ends == 1 && seen.code == 0);
        finish(NULL);
}

/* Pausing and resuming within one callback is nothing: no frame comes twice. */
static void test_bug_resume_in_callback(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct link *l = connected();
        two_frames(&b);
        seen.pause_each = seen.resume_at_once = true;
        send_peer(b.data, b.len);
        turn();
        CHECK_INT(seen.frames, 3);
        CHECK_STR(buf_cstr(&seen.story), "stdout:one exit: stderr:three ");
        finish(l);
}

static void test_hostile_frames(void)
{
        static const char *const heads[] = { "\0\0\0\0\0\0\0\0", "\0\0\0\0\377\0\0\0", "\377\377\377\377\5\0\0\0",
                                             "\0\0\0\0\5\0\1\0" };
        for (unsigned i = 0; i < 4; i++) {
                _cleanup_buf_ struct buf b = { 0 };
                (void)connected();
                frame_add(&b, FRAME_STDOUT, "good", 4);
                buf_add(&b, heads[i], 8);
                frame_add(&b, FRAME_STDOUT, "never seen", 10);
                send_peer(b.data, b.len);
                turn();
                CHECK_STR(buf_cstr(&seen.story), "stdout:good ");
                CHECK(seen.ends == 1 && seen.code == -EPROTO);
                char c;
                CHECK(recv(peer, &c, 1, 0) == 0); /* and it was hung up on */
                finish(NULL);
        }
}

static void test_hangup(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        (void)connected();
        frame_add(&b, FRAME_STDOUT, "good", 4);
        frame_add(&b, FRAME_STDOUT, "cut off", 7);
        send_peer(b.data, b.len - 3);
        (void)close(peer);
        peer = -1;
        turn();
        CHECK_STR(buf_cstr(&seen.story), "stdout:good ");
        CHECK(seen.ends == 1 && seen.code == 0);
        finish(NULL);
        (void)connected();
        seen.close_in_end = true;
        (void)close(peer);
        peer = -1;
        turn();
        CHECK_INT(seen.ends, 1);
        finish(NULL);
}

static void test_close_in_callback(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        (void)connected();
        two_frames(&b);
        seen.close_in_frame = true;
        send_peer(b.data, b.len);
        turn();
        CHECK_INT(seen.frames, 1);
        CHECK_INT(seen.ends, 0);
        char c;
        CHECK(recv(peer, &c, 1, 0) == 0);
        finish(NULL);
}

/* More than the socket takes: kept in order, told by its return value, then drained. */
static void test_send(void)
{
        struct link *l = connected();
        static char block[100000];
        size_t sent = 0, waits = 0;
        for (unsigned i = 0; i < 40 && !waits; i++) {
                memset(block, 'a' + (int)i % 26, sizeof block);
                waits = link_send(l, FRAME_DATA, block, sizeof block);
                sent++;
        }
        CHECK(waits > 0);
        CHECK(link_send(l, FRAME_END, NULL, 0) > waits);
        CHECK_INT(seen.drains, 0);
        _cleanup_buf_ struct buf got = { 0 };
        for (int i = 0; i < 10000 && !seen.drains; i++) {
                char piece[65536];
                ssize_t n = recv(peer, piece, sizeof piece, 0);
                if (n > 0)
                        buf_add(&got, piece, (size_t)n);
                turn();
        }
        CHECK(seen.drains >= 1);
        char piece[65536];
        for (ssize_t n; (n = recv(peer, piece, sizeof piece, 0)) > 0;)
                buf_add(&got, piece, (size_t)n);
        size_t at = 0, used, frames = 0;
        struct frame f;
        while (frame_take(got.data + at, got.len - at, &f, &used) > 0) {
                if (frames < sent) {
                        CHECK(f.type == FRAME_DATA && f.payload.n == sizeof block);
                        CHECK(f.payload.p[0] == 'a' + (int)frames % 26 && f.payload.p[f.payload.n - 1] == f.payload.p[0]);
                }
                frames++;
                at += used;
        }
        CHECK_INT(frames, sent + 1);
        CHECK_INT(f.type, FRAME_END);
        CHECK_INT(at, got.len);
        finish(l);
}

/* A queue that is fed as fast as the agent empties it never drains; it moves all the same. */
static void test_bug_moves_without_drain(void)
{
        struct link *l = connected();
        static char block[100000], piece[sizeof block];
        size_t waits = 0;
        while (waits < 4 * sizeof block)
                waits = link_send(l, FRAME_DATA, block, sizeof block);
        turn();
        CHECK_INT(seen.moves, 0); /* nobody reads */
        for (unsigned i = 0; i < 50; i++) {
                CHECK(recv(peer, piece, sizeof piece, 0) > 0);
                turn();
                (void)link_send(l, FRAME_DATA, block, sizeof block);
        }
        CHECK(seen.moves > 1);
        CHECK_INT(seen.drains, 0);
        finish(l);
}

/* An agent that failed answers before it hangs up: what it said is still read. */
static void test_answer_before_hangup(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        struct link *l = connected();
        static char block[1 << 20];
        frame_add(&b, FRAME_FAIL, "why", 3);
        send_peer(b.data, b.len);
        (void)shutdown(peer, SHUT_RD);
        for (unsigned i = 0; i < 5; i++)
                (void)link_send(l, FRAME_DATA, block, sizeof block);
        turn();
        CHECK_STR(buf_cstr(&seen.story), "fail:why ");
        finish(l);
}

static void answer_exit(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        frame_add(&b, FRAME_EXIT, NULL, 0);
        send_peer(b.data, b.len);
        turn();
}

/* One connection serves one operation after the other. */
static void test_parked(void)
{
        (void)connected();
        for (unsigned i = 0; i < 3; i++) {
                seen.done_in_frame = true;
                answer_exit();
                CHECK(seen.frames == 1 && seen.ends == 0);
                (void)opened();
                CHECK_INT(accepted(), -1);
                hear_request();
        }
        seen.done_in_frame = true;
        answer_exit();
        link_close_parked();
        char c;
        CHECK(recv(peer, &c, 1, 0) == 0);
        finish(NULL);
}

/* An agent that went, or that talks out of turn, is not asked again on that connection. */
static void test_parked_and_lost(void)
{
        _cleanup_buf_ struct buf b = { 0 };
        char c;
        for (unsigned how = 0; how < 4; how++) {
                (void)connected();
                seen.done_in_frame = true;
                if (how == 0) { /* more in the same read */
                        two_frames(&b);
                        send_peer(b.data, b.len);
                        turn();
                } else
                        answer_exit();
                if (how == 1) { /* later */
                        answer_exit();
                } else if (how > 1) {
                        (void)close(peer);
                        peer = -1;
                        if (how == 2) /* else the loop has not seen it yet */
                                turn();
                }
                CHECK(seen.frames == 1 && seen.ends == 0);
                if (how < 2) /* unread bytes make it a reset */
                        CHECK(recv(peer, &c, 1, 0) == 0 || errno == ECONNRESET);
                int old = peer;
                struct link *l = opened();
                peer = accepted();
                CHECK(peer >= 0);
                hear_request();
                link_close(l);
                if (old >= 0)
                        (void)close(old);
                finish(NULL);
        }
}

/* One for each agent, and a bound over all: the oldest goes. */
static void test_parked_bound(void)
{
        static int peers[LIMIT_PARKED_LINKS + 1];
        char c;
        (void)connected();
        peers[0] = peer;
        (void)connected();
        seen.done_in_frame = true;
        answer_exit();
        int second = peer;
        peer = peers[0];
        answer_exit();
        CHECK(recv(peers[0], &c, 1, 0) == 0);
        CHECK(recv(second, &c, 1, 0) < 0 && errno == EAGAIN);
        link_close_parked();
        (void)close(second);
        (void)close(peers[0]);
        for (unsigned i = 0; i <= LIMIT_PARKED_LINKS; i++) {
                char path[32];
                (void)snprintf(path, sizeof path, "sbx-%u.sock", i);
                CHECK(symlink("sbx-test.sock", path) == 0);
                (void)snprintf(path, sizeof path, "sbx-%u", i);
                (void)opened_at(path);
                peer = peers[i] = accepted();
                hear_request();
                seen.done_in_frame = true;
                answer_exit();
                if (i == LIMIT_PARKED_LINKS - 1)
                        CHECK(recv(peers[0], &c, 1, 0) < 0 && errno == EAGAIN);
        }
        CHECK(recv(peers[0], &c, 1, 0) == 0);
        CHECK(recv(peers[1], &c, 1, 0) < 0 && errno == EAGAIN);
        link_close_parked();
        for (unsigned i = 0; i <= LIMIT_PARKED_LINKS; i++) {
                char path[32];
                (void)snprintf(path, sizeof path, "sbx-%u.sock", i);
                (void)unlink(path);
                (void)close(peers[i]);
        }
        turn();
}

static void test_nobody_listens(void)
{
        struct buf request = { 0 };
        struct link *l = NULL;
        struct err e = { 0 };
        frame_add(&request, FRAME_PING, NULL, 0);
        CHECK_INT(link_open(&loop, "sbx-none", &request, &handlers, &seen, &l, &e), -ENOENT);
        CHECK(l == NULL && strstr(e.msg, "does not answer"));
        CHECK(request.len == FRAME_HEAD_BYTES); /* still the caller's */
        buf_free(&request);
}

int main(void)
{
        struct sockaddr_un a = { .sun_family = AF_UNIX, .sun_path = "sbx-test.sock" };
        if (!mkdtemp(dir) || chdir(dir) < 0 || uv_loop_init(&loop) < 0)
                return 1;
        listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (bind(listener, (struct sockaddr *)&a, sizeof a) < 0 || listen(listener, 8) < 0)
                return 1;
        RUN(test_partial_frames);
        RUN(test_big_frame);
        RUN(test_pause_and_resume);
        RUN(test_hostile_frames);
        RUN(test_hangup);
        RUN(test_close_in_callback);
        RUN(test_send);
        RUN(test_bug_moves_without_drain);
        RUN(test_answer_before_hangup);
        RUN(test_parked);
        RUN(test_parked_and_lost);
        RUN(test_parked_bound);
        RUN(test_nobody_listens);
        RUN(test_bug_resume_in_callback);
        CHECK_INT(uv_loop_close(&loop), 0);
        buf_free(&seen.story);
        (void)unlink("sbx-test.sock");
        (void)rmdir(dir);
        return check_done();
}
