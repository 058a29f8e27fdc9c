/* Any bytes as an upload. Nothing may crash, leak, hang, or reach the file beside dest.
 * Build: clang -fsanitize=fuzzer,address,undefined; corpus: tests/fuzz/corpus/untar.
 *
 * conn is a memory file with the frames in it: untar_run reads them and writes its answer
 * behind the last one that it read, where nobody looks. */
#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/archive.h"
#include "wire/frame.h"

#define INPUT_MAX (256 * 1024)

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char root[64];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
        (void)st, (void)type, (void)f;
        return remove(path);
}

static void clear(void)
{
        (void)nftw(root, remove_one, 64, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static void write_file(const char *rel, const char *text)
{
        char path[128];
        (void)snprintf(path, sizeof path, "%s/%s", root, rel);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (fd < 0 || write(fd, text, strlen(text)) < 0)
                abort();
        (void)close(fd);
}

/* Links that the sandbox may have made before: out, in, and round. */
static void fresh_tree(void)
{
        char path[128];
        if (mkdir(root, 0755) < 0)
                abort();
        (void)snprintf(path, sizeof path, "%s/dest", root);
        if (mkdir(path, 0755) < 0)
                abort();
        write_file("canary", "alive");
        (void)snprintf(path, sizeof path, "%s/dest/up", root);
        if (symlink("..", path) < 0)
                abort();
        (void)snprintf(path, sizeof path, "%s/dest/self", root);
        if (symlink(".", path) < 0)
                abort();
}

static void check_tree(void)
{
        char path[128], text[16] = "";
        struct stat st;
        (void)snprintf(path, sizeof path, "%s/canary", root);
        int fd = open(path, O_RDONLY | O_NOFOLLOW);
        if (fd < 0 || read(fd, text, sizeof text - 1) != 5 || strcmp(text, "alive") != 0 ||
            fstat(fd, &st) < 0 || st.st_nlink != 1 || (st.st_mode & 07777) != 0644)
                abort();
        (void)close(fd);
        /* dest, the canary, and nothing else */
        if (stat(root, &st) < 0 || st.st_nlink != 3 || (st.st_mode & 07777) != 0755)
                abort();
}

/* Without this nearly every input ends at its first header. */
static void mend_sums(uint8_t *p, size_t n)
{
        for (size_t at = 0; at + 512 <= n; at += 512) {
                uint8_t *h = p + at;
                unsigned sum = 0;
                char digits[8];
                if (memcmp(h + 257, "ustar", 5) != 0)
                        continue;
                memset(h + 148, ' ', 8);
                for (int i = 0; i < 512; i++)
                        sum += h[i];
                (void)snprintf(digits, sizeof digits, "%06o", sum);
                memcpy(h + 148, digits, 7);
        }
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
        (void)argc, (void)argv;
        /* An escape that this is to find must not be root's. */
        if (getuid() == 0 &&
            (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0))
                abort();
        (void)snprintf(root, sizeof root, "/dev/shm/cloche-fuzz-%d", (int)getpid());
        (void)umask(0);
        return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static uint8_t copy[INPUT_MAX];
        if (size > sizeof copy)
                return 0;
        memcpy(copy, data, size);
        mend_sums(copy, size);
        clear();
        fresh_tree();
        int conn = memfd_create("conn", MFD_CLOEXEC), dir = open(root, O_PATH | O_DIRECTORY);
        size_t step = size % 3 ? 1000 + size % 7777 : sizeof copy;
        for (size_t at = 0; at < size; at += step)
                (void)frame_write(conn, FRAME_DATA, copy + at, size - at < step ? size - at : step);
        (void)frame_write(conn, FRAME_END, NULL, 0);
        (void)lseek(conn, 0, SEEK_SET);
        struct untar_request req = { "/dest", 1 << 20, 200 };
        (void)untar_run(dir, conn, &req);
        (void)close(conn);
        (void)close(dir);
        check_tree();
        clear();
        return 0;
}
