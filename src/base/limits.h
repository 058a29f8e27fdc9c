/* Every limit's default, in one place, with unit and reason. What an operator may
 * change is a setting of the same name in the configuration (config/config.c). */
#pragma once

/* --- HTTP edge --- */
#define LIMIT_HEAD_BYTES (64 * 1024)       /* request line and headers; past it 431 */
#define LIMIT_HEADER_COUNT 128             /* clients send about ten */
#define LIMIT_CONNECTIONS 4096             /* fds are 20,000 at most on small hosts */
#define LIMIT_HEAD_TIMEOUT_MS 15000        /* slowloris */
#define LIMIT_IDLE_TIMEOUT_MS 75000        /* keep-alive */
#define LIMIT_BODY_TIMEOUT_MS 60000        /* no byte of a body for this long */
#define LIMIT_WRITE_TIMEOUT_MS 120000      /* a reader that takes nothing */
#define LIMIT_JSON_BODY_BYTES (8 * 1024 * 1024) /* argv and env fit in 2 MiB on Linux */
#define LIMIT_JSON_VALUES (128 * 1024)     /* in one body; a command needs 74,000 at most */
#define LIMIT_DISCARD_BODY_BYTES (256 * 1024)   /* unread body dropped to keep the connection */

/* --- names --- */
#define LIMIT_SESSION_ID_BYTES 1024
#define LIMIT_PATH_BYTES 4096              /* PATH_MAX: the kernel takes no more */

/* --- exec --- */
#define LIMIT_ARGV_COUNT 65536
#define LIMIT_ARG_BYTES (128 * 1024 - 1)   /* the kernel's MAX_ARG_STRLEN */
#define LIMIT_ARGV_ENV_BYTES (1536 * 1024) /* below the kernel's quarter of an 8 MiB stack */
#define LIMIT_ENV_COUNT 4096
#define LIMIT_OUTPUT_BYTES (1024 * 1024)   /* kept of each stream of an exec */
#define LIMIT_EXEC_TIMEOUT_SECONDS 86400   /* the longest that may be asked for */
#define DEFAULT_EXEC_TIMEOUT_SECONDS 30
#define LIMIT_EXECS_PER_BOX 256            /* running at once in one sandbox */
#define LIMIT_PARKED_LINKS 256             /* idle connections to agents; an fd each, on both sides */
#define EXEC_ENDING_SECONDS 5              /* killed processes that hang in the kernel hold up an answer so long */
#define EXEC_RESCUE_SECONDS 6              /* above that: past it the agent itself needs help */
#define EXEC_GIVE_UP_SECONDS 10            /* and past this it is stopped or worse: its asker waits no longer */
#define EXEC_HEARTBEAT_MS 10000            /* white space before a slow exec's JSON */

/* --- sandboxes --- */
#define DEFAULT_TTL_SECONDS 900
#define LIMIT_TTL_SECONDS (365LL * 86400)
#define LIMIT_BOXES 10000
#define DEFAULT_CPU_MILLIS 1000
#define DEFAULT_MEMORY_BYTES (2048ull << 20)
#define DEFAULT_STORAGE_BYTES (1024ull << 20) /* below memory: files live in memory */
#define DEFAULT_PIDS 512
#define MIN_CPU_MILLIS 10                  /* the kernel's smallest quota is 1 ms of 100 */
#define MAX_CPU_MILLIS 1024000
#define MIN_MEMORY_BYTES (4ull << 20)      /* below it not even sh starts */
#define MAX_MEMORY_BYTES (1ull << 46)
#define MIN_STORAGE_BYTES (64ull << 10)
#define MAX_STORAGE_BYTES (1ull << 46)
#define STORAGE_BYTES_PER_INODE 4096       /* a file of nothing still costs the kernel ~1 KiB */
#define MIN_INODES 1024
#define KEEPER_WAIT_MS 20000               /* below the 30 s after which clients give up */
#define POOL_REFILL_MS 4                   /* longer than a short exec, shorter than a person */
#define DEFAULT_POOL_SIZE 4                /* ready sandboxes of the default shape */

/* --- transfers --- */
#define LIMIT_UPLOAD_BYTES (64ull << 30)   /* compressed, as sent */
#define LIMIT_UNPACKED_BYTES (256ull << 30) /* a bomb ends here, or at the storage limit */
#define LIMIT_UPLOAD_MEMBERS 2000000
#define LIMIT_STALL_SECONDS 120            /* a worker with a hundredth of a core still moves in it */
#define LIMIT_SKIPPED_NAMED 20             /* skipped members named in an answer */

/* --- shutdown --- */
#define DEFAULT_GRACE_SECONDS 10
