/* Archives that mean harm. */
#include "untar_bed.h"

/* --- names that want out ----------------------------------------------------------- */

static void names_that_leave(void)
{
        begin();
        file("../canary", "dead");
        file("a/../../canary", "dead");
        file("..", "dead");
        file("a/..", "dead");
        file("/", ""); /* a name that ends in a slash is a directory: dest itself */
        file(".", "dead");
        file("///abs", "kept");
        file("/./../canary", "dead");
        file("./dot/./x", "kept");
        file("a..b", "kept");
        finish();
        unpack();
        done(3, 6);
        CHECK_STR(get("dest/abs"), "kept");
        CHECK_STR(get("dest/dot/x"), "kept");
        CHECK_STR(get("dest/a..b"), "kept");
        skipped_line("../canary: \"..\" in its name\n");
        skipped_line(".: empty name\n");
        end_checks();
}

static void names_too_long(void)
{
        static char big[70000];
        begin();
        memset(big, 'n', 256);
        big[256] = 0;
        pax("path", big);
        file("short", "x");
        for (size_t i = 0; i < sizeof big - 1; i++)
                big[i] = i % 2 ? '/' : 'd';
        big[4097] = 0;
        pax("path", big);
        file("short", "x");
        big[4097] = 'd';
        big[sizeof big - 1] = 0;
        pax("path", big);
        file("short", "x");
        file("after", "x");
        finish();
        unpack();
        done(1, 3);
        CHECK(strlen(ans.skips) < 2000);
        CHECK_STR(get("dest/after"), "x");
        CHECK(absent("dest/short"));
        end_checks();
}

/* libarchive ends a pax path at its first NUL. What must not happen is that the check
 * sees one name and the kernel another. */
static void names_with_nul(void)
{
        begin();
        pax_n("path", "ok\0/../../canary", 16);
        file("short", "x");
        pax_n("path", "..\0ok", 5);
        file("short", "x");
        pax_n("path", "\0", 1);
        file("short", "x");
        finish();
        unpack();
        CHECK(ans.type == FRAME_DONE || ans.type == FRAME_FAIL);
        CHECK(absent("ok"));
        end_checks();
}

static void symlinks(void)
{
        begin();
        member("in", '2', "target", 0777, NULL);
        member("d/in", '2', "../target", 0777, NULL);
        member("abs", '2', "/canary", 0777, NULL);
        member("up", '2', "../canary", 0777, NULL);
        member("d/up", '2', "x/../../../canary", 0777, NULL);
        member("none", '2', "", 0777, NULL);
        finish();
        unpack();
        done(2, 4);
        CHECK_STR(get("dest/in"), "(link)");
        CHECK_STR(get("dest/d/in"), "(link)");
        CHECK(absent("dest/abs") && absent("dest/up") && absent("dest/d/up"));
        skipped_line("up: symlink leaves the destination\n");
        end_checks();
}

static void write_through_links(void)
{
        begin();
        /* The links are there already: made by the sandbox, not by the archive. */
        CHECK_INT(symlink("..", path_of("dest/up")), 0);
        CHECK_INT(symlink(root, path_of("dest/abs")), 0);
        CHECK_INT(symlink("../canary", path_of("dest/final")), 0);
        CHECK_INT(mkdir(path_of("dest/real"), 0755), 0);
        CHECK_INT(symlink("real", path_of("dest/inner")), 0);
        CHECK_INT(symlink("loop", path_of("dest/loop")), 0);
        CHECK_INT(symlink("missing", path_of("dest/dangling")), 0);
        file("up/canary", "dead");
        file("abs/canary", "dead");
        file("up/new/x", "dead");
        file("final", "mine");
        file("inner/x", "kept");
        file("inner/more/y", "kept");
        file("loop/x", "dead");
        file("dangling/x", "dead");
        member("up/newdir", '5', NULL, 0755, NULL);
        member("up", '5', NULL, 0700, NULL);
        finish();
        unpack();
        done(3, 7);
        CHECK_STR(get("dest/final"), "mine");
        CHECK_STR(get("dest/real/x"), "kept");
        CHECK_STR(get("dest/real/more/y"), "kept");
        CHECK(absent("new") && absent("newdir") && absent("dest/missing"));
        skipped_line("up/canary: a symbolic link on its path leaves the destination\n");
        end_checks();
}

static void link_then_write(void)
{
        begin();
        member("l", '2', "sub", 0777, NULL);
        member("sub/", '5', NULL, 0755, NULL);
        file("l/a", "through");
        file("l", "replaced"); /* the link, not what it points at */
        file("l/b", "no directory any more");
        member("c", '2', "l", 0777, NULL);
        file("c", "replaced");
        finish();
        unpack();
        done(6, 1);
        CHECK_STR(get("dest/sub/a"), "through");
        CHECK_STR(get("dest/l"), "replaced");
        CHECK_STR(get("dest/c"), "replaced");
        CHECK(absent("dest/sub/b"));
        end_checks();
}

static void hard_links(void)
{
        struct stat a, b;
        begin();
        CHECK_INT(symlink("../canary", path_of("dest/out")), 0);
        CHECK_INT(symlink("..", path_of("dest/updir")), 0);
        file("f", "data");
        member("h", '1', "f", 0644, NULL);
        member("sub/h", '1', "/f", 0644, NULL);
        member("self", '1', "self", 0644, NULL);
        member("f", '1', "f", 0644, NULL);
        member("h", '1', "f", 0644, NULL);
        member("x1", '1', "../canary", 0644, NULL);
        member("x2", '1', "out", 0644, NULL);
        member("x3", '1', "updir/canary", 0644, NULL);
        member("x4", '1', "sub", 0644, NULL);
        member("x5", '1', "missing", 0644, NULL);
        member("x6", '1', "", 0644, NULL);
        member("sub", '1', "f", 0644, NULL);
        finish();
        unpack();
        CHECK_INT(ans.type, FRAME_DONE);
        CHECK_STR(get("dest/h"), "data");
        CHECK_STR(get("dest/sub/h"), "data");
        CHECK(stat(path_of("dest/f"), &a) == 0 && stat(path_of("dest/h"), &b) == 0);
        CHECK_INT(a.st_ino, b.st_ino);
        CHECK_INT(a.st_nlink, 3);
        CHECK(absent("dest/x1") && absent("dest/x2") && absent("dest/x3"));
        CHECK(absent("dest/x4") && absent("dest/x5") && absent("dest/self"));
        CHECK(stat(path_of("canary"), &a) == 0 && a.st_nlink == 1);
        end_checks();
}

static void special_files(void)
{
        begin();
        member("chr", '3', NULL, 0666, NULL);
        member("blk", '4', NULL, 0666, NULL);
        member("fifo", '6', NULL, 0666, NULL);
        finish();
        unpack();
        done(0, 3);
        CHECK_INT(entries("dest"), 0);
        end_checks();
}

static void in_each_others_way(void)
{
        begin();
        CHECK_INT(mkdir(path_of("dest/dir"), 0755), 0);
        put("dest/dir/keep", "k");
        put("dest/file", "old");
        file("dir", "file over directory");
        member("file/", '5', NULL, 0755, NULL);
        file("file/below", "x");
        member("dir", '2', "file", 0777, NULL);
        file("twice", "first");
        file("twice", "second");
        member("dir/", '5', NULL, 0750, NULL);
        finish();
        unpack();
        done(3, 4);
        CHECK_STR(get("dest/file"), "old");
        CHECK_STR(get("dest/dir/keep"), "k");
        CHECK_STR(get("dest/twice"), "second");
        skipped_line("dir: a directory of that name exists\n");
        skipped_line("file: a file of that name exists\n");
        end_checks();
}

static void many_skips_are_counted(void)
{
        begin();
        for (int i = 0; i < 300; i++)
                file("../x", "");
        finish();
        unpack();
        done(0, 300);
        int lines = 0;
        for (const char *p = ans.skips; *p; p++)
                lines += *p == '\n';
        CHECK_INT(lines, 20);
        end_checks();
}

/* --- broken and endless archives -------------------------------------------------- */

static void broken(void)
{
        begin();
        unpack(); /* not one byte */
        failed(EINVAL);
        compress_archive(); /* of nothing */
        unpack();
        failed(EINVAL);
        finish();
        unpack(); /* nothing but the end mark */
        done(0, 0);
        finish();
        compress_archive();
        unpack();
        done(0, 0);
        for (int i = 0; i < 3000; i++)
                buf_adds(&ar, "garbage ");
        unpack();
        failed(EINVAL);
        CHECK(strstr(ans.message, "invalid tar archive: "));
        buf_add(&ar, "\x1f\x8b garbage that is no gzip", 26);
        unpack();
        failed(EINVAL);
        buf_add(&ar, "BZh91AY&SY", 10);
        unpack();
        failed(EINVAL);
        CHECK_INT(entries("dest"), 0);
        end_checks();
}

static void bad_checksum(void)
{
        begin();
        file("good", "1");
        size_t at = ar.len;
        file("bad", "2");
        ar.data[at] = 'X';
        finish();
        unpack();
        failed(EINVAL);
        CHECK(absent("dest/bad") && absent("dest/Xad"));
        end_checks();
}

static void cut_anywhere(void)
{
        char data[3001];
        memset(data, 'd', 3000);
        data[3000] = 0;
        for (int gz = 0; gz < 2; gz++)
                for (size_t cut = 1; cut < 4000; cut += 97) {
                        begin();
                        file("f", data);
                        finish();
                        if (gz)
                                compress_archive();
                        if (cut >= ar.len)
                                break;
                        ar.len -= cut;
                        unpack();
                        /* Only the end mark of a plain tar may be missing. */
                        if (gz || cut > 1024 + 72)
                                failed(EINVAL);
                        CHECK(absent("dest/f") || strlen(get("dest/f")) == 3000);
                        end_checks();
                }
        buf_free(&ar);
}

static void connection_lost(void)
{
        begin();
        char data[200001];
        memset(data, 'd', 200000);
        data[200000] = 0;
        put("dest/f", "old");
        file("f", data);
        ar.len = 150000;
        no_end = true;
        unpack();
        CHECK_INT(ans.type, FRAME_NONE);
        CHECK_STR(get("dest/f"), "old");
        file("g", "whole, but without END");
        finish();
        no_end = true;
        unpack();
        CHECK_INT(ans.type, FRAME_NONE);
        end_checks();
}

static void trailing_bytes(void)
{
        begin();
        file("f", "x");
        finish();
        for (int i = 0; i < 5000; i++)
                buf_adds(&ar, "trailing");
        unpack();
        done(1, 0);
        file("f", "x");
        finish();
        compress_archive();
        buf_adds(&ar, "junk");
        unpack();
        failed(EINVAL);
        file("f", "x");
        finish();
        compress_archive();
        ar.data[ar.len - 6] ^= 1; /* the check sum */
        unpack();
        failed(EINVAL);
        end_checks();
}

static void bombs(void)
{
        static char zeros[1 << 16];
        begin();
        req.max_bytes = 1 << 20;
        buf_add(&ar, head("bomb", '0', 4 << 20, NULL, 0644), 512);
        for (int i = 0; i < 64; i++)
                buf_add(&ar, zeros, sizeof zeros);
        finish();
        compress_archive();
        unpack(); /* one member that says so */
        failed(EFBIG);
        for (int m = 0; m < 3; m++) {
                buf_add(&ar, head("bomb", '0', 512 << 10, NULL, 0644), 512);
                for (int i = 0; i < 8; i++)
                        buf_add(&ar, zeros, sizeof zeros);
        }
        finish();
        unpack(); /* all together */
        failed(EFBIG);
        req.max_members = 1;
        buf_add(&ar, head("../skipped", '0', 80 << 20, NULL, 0644), 512);
        for (int i = 0; i < 1280; i++)
                buf_add(&ar, zeros, sizeof zeros);
        finish();
        compress_archive();
        unpack(); /* skipped bytes cost time as well */
        failed(EFBIG);
        end_checks();
}

static void too_many_members(void)
{
        begin();
        req.max_members = 5;
        for (int i = 0; i < 6; i++)
                file("f", "x");
        finish();
        unpack();
        failed(E2BIG);
        end_checks();
}

static void header_bombs(void)
{
        static char megs[1 << 20];
        memset(megs, 'p', sizeof megs);
        begin();
        req.max_bytes = 1ull << 40; /* no help from there */
        buf_add(&ar, head("PaxHeader", 'x', 1 << 30, NULL, 0644), 512);
        buf_addf(&ar, "1073741824 path=");
        for (int i = 0; i < 100; i++)
                buf_add(&ar, megs, sizeof megs);
        unpack();
        failed(EINVAL);
        buf_add(&ar, head("././@LongLink", 'L', 1 << 30, NULL, 0644), 512);
        for (int i = 0; i < 100; i++)
                buf_add(&ar, megs, sizeof megs);
        unpack();
        failed(EINVAL);
        for (int i = 0; i < 20000; i++) { /* one after another, with no member between */
                buf_add(&ar, head("././@LongLink", 'L', 3, NULL, 0644), 512);
                body("ab", 3);
        }
        file("x", "x");
        finish();
        unpack();
        CHECK(ans.type == FRAME_FAIL || ans.type == FRAME_DONE);
        end_checks();
}

static void absurd_sizes(void)
{
        static const char *const sizes[] = { "-1", "99999999999999999999999", "9223372036854775807",
                                             "1e9", "" };
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
                begin();
                pax("size", sizes[i]);
                file("f", "x");
                finish();
                unpack();
                CHECK(ans.type == FRAME_FAIL || ans.type == FRAME_DONE);
                end_checks();
        }
        for (int neg = 0; neg < 2; neg++) { /* base 256 */
                begin();
                char *h = head("f", '0', 0, NULL, 0644);
                memset(h + 124, neg ? 0xff : 0x7f, 12);
                h[124] = neg ? (char)0xff : (char)0x80;
                sum(h);
                buf_add(&ar, h, 512);
                finish();
                unpack();
                CHECK(ans.type == FRAME_FAIL || (neg && ans.type == FRAME_DONE));
                end_checks();
        }
}

static void sparse(void)
{
        struct stat st;
        begin();
        pax("GNU.sparse.map", "1048576,3");
        ar.len = 0;
        _cleanup_buf_ struct buf rec = { 0 };
        buf_adds(&rec, "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
                       "26 GNU.sparse.name=sparse\n31 GNU.sparse.realsize=2097152\n");
        buf_add(&ar, head("PaxHeader", 'x', rec.len, NULL, 0644), 512);
        body(rec.data, rec.len);
        buf_add(&ar, head("GNUSparseFile.0/sparse", '0', 515, NULL, 0644), 512);
        body("1\n1048576\n3\n", 12);
        body("end", 3);
        finish();
        unpack();
        done(1, 0);
        CHECK(stat(path_of("dest/sparse"), &st) == 0);
        CHECK_INT(st.st_size, 2097152);
        CHECK(st.st_blocks < 1000);
        int fd = open(path_of("dest/sparse"), O_RDONLY);
        char got[4] = "";
        CHECK(pread(fd, got, 3, 1048576) == 3);
        CHECK_STR(got, "end");
        (void)close(fd);
        end_checks();
}

static void sparse_terabytes(void)
{
        begin();
        buf_adds(&ar, "");
        _cleanup_buf_ struct buf rec = { 0 };
        buf_adds(&rec, "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
                       "26 GNU.sparse.name=sparse\n38 GNU.sparse.realsize=99999999999999\n");
        buf_add(&ar, head("PaxHeader", 'x', rec.len, NULL, 0644), 512);
        body(rec.data, rec.len);
        buf_add(&ar, head("s", '0', 515, NULL, 0644), 512);
        body("1\n99999999999990\n3\n", 19);
        body("end", 3);
        finish();
        unpack();
        failed(EFBIG);
        CHECK_INT(entries("dest"), 0);
        end_checks();
}

/* A map of holes is text in the body: millions of entries would fill memory. */
static void sparse_map_bomb(void)
{
        begin();
        req.max_bytes = 1ull << 40;
        _cleanup_buf_ struct buf rec = { 0 };
        buf_adds(&rec, "22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
                       "26 GNU.sparse.name=sparse\n31 GNU.sparse.realsize=2097152\n");
        buf_add(&ar, head("PaxHeader", 'x', rec.len, NULL, 0644), 512);
        body(rec.data, rec.len);
        buf_add(&ar, head("s", '0', 80 << 20, NULL, 0644), 512);
        buf_adds(&ar, "20000000\n");
        for (int i = 0; i < 20000000; i++)
                buf_add(&ar, "1\n0\n", 4);
        compress_archive();
        unpack();
        failed(EINVAL);
        CHECK_INT(entries("dest"), 0);
        end_checks();
}

int main(void)
{
        if (!bed_make())
                return 1;
        RUN(names_that_leave);
        RUN(names_too_long);
        RUN(names_with_nul);
        RUN(symlinks);
        RUN(write_through_links);
        RUN(link_then_write);
        RUN(hard_links);
        RUN(special_files);
        RUN(in_each_others_way);
        RUN(many_skips_are_counted);
        RUN(broken);
        RUN(bad_checksum);
        RUN(cut_anywhere);
        RUN(connection_lost);
        RUN(trailing_bytes);
        RUN(bombs);
        RUN(too_many_members);
        RUN(header_bombs);
        RUN(absurd_sizes);
        RUN(sparse);
        RUN(sparse_terabytes);
        RUN(sparse_map_bomb);
        return bed_done();
}
