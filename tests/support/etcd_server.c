#include "tests/support/etcd_server.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "node/base/clock.h"

#define MS UINT64_C(1000000)

bool etcd_is_here(void)
{
    if (system("command -v etcd >/dev/null 2>&1") == 0) return true;
    puts("SKIP: there is no etcd on the path");
    return false;
}

static struct sockaddr_in loopback(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

/* Free now; all that are taken for one etcd are held until the last is. */
static int free_port(int *fd_out)
{
    struct sockaddr_in at = loopback(0);
    socklen_t n = sizeof at;
    const int one = 1;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one),
                     0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    *fd_out = fd;
    return ntohs(at.sin_port);
}

void etcd_prepare(etcd_server *e, int n)
{
    int fds[2 * ETCD_MEMBERS_MAX], used = 0;
    memset(e, 0, sizeof *e);
    e->n = n;
    const char *temporary = getenv("TMPDIR");
    (void)snprintf(e->folder, sizeof e->folder, "%.40s/etcd-XXXXXX",
                   temporary != NULL ? temporary : P_tmpdir);
    ck_assert_msg(mkdtemp(e->folder) != NULL, "%s: %s", e->folder,
                  strerror(errno));
    for (int i = 0; i < n; i++) {
        e->ports[i] = free_port(&fds[used++]);
        e->peer_ports[i] = free_port(&fds[used++]);
        const size_t at = strlen(e->endpoints);
        (void)snprintf(e->endpoints + at, sizeof e->endpoints - at,
                       "%s127.0.0.1:%d", at > 0 ? "," : "", e->ports[i]);
    }
    while (used > 0) (void)close(fds[--used]);
}

static void run_member(const etcd_server *e, int i)
{
    static char name[8], dir[96], log[96], client[64], peer[64], all[256];
    const char *const scheme = e->tls ? "https" : "http";
    (void)snprintf(name, sizeof name, "m%d", i);
    (void)snprintf(dir, sizeof dir, "%s/m%d", e->folder, i);
    (void)snprintf(log, sizeof log, "%s/m%d.log", e->folder, i);
    (void)snprintf(client, sizeof client, "%s://127.0.0.1:%d", scheme,
                   e->ports[i]);
    (void)snprintf(peer, sizeof peer, "http://127.0.0.1:%d", e->peer_ports[i]);
    for (int k = 0; k < e->n; k++) {
        const size_t at = strlen(all);
        (void)snprintf(all + at, sizeof all - at, "%sm%d=http://127.0.0.1:%d",
                       k > 0 ? "," : "", k, e->peer_ports[k]);
    }
    const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    (void)dup2(fd, 1);
    (void)dup2(fd, 2);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    execlp("etcd", "etcd", "--name", name, "--data-dir", dir,
           "--listen-client-urls", client, "--advertise-client-urls", client,
           "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
           "--initial-cluster", all, "--heartbeat-interval", "50",
           "--election-timeout", "500", "--log-level", "error", e->extra[0],
           e->extra[1], e->extra[2], e->extra[3], e->extra[4], e->extra[5],
           e->extra[6], e->extra[7], (char *)NULL);
    _exit(127);
}

void etcd_start(etcd_server *e, int i)
{
    ck_assert_int_eq(e->pids[i], 0);
    (void)fflush(NULL);
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) run_member(e, i);
    e->pids[i] = pid;
}

/* The answer to GET /health of it, cut; "" for none. */
static void ask_health(int port, char *out, size_t bytes)
{
    static const char request[] = "GET /health HTTP/1.0\r\n\r\n";
    const struct sockaddr_in at = loopback(port);
    const struct timeval patience = {.tv_usec = 300000};
    size_t n = 0;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd, (const struct sockaddr *)&at, sizeof at) == 0 &&
        send(fd, request, sizeof request - 1, MSG_NOSIGNAL) > 0) {
        ssize_t got;
        while (n + 1 < bytes && (got = read(fd, out + n, bytes - 1 - n)) > 0)
            n += (size_t)got;
    }
    out[n] = '\0';
    (void)close(fd);
}

static bool accepts(int port)
{
    const struct sockaddr_in at = loopback(port);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool good = connect(fd, (const struct sockaddr *)&at, sizeof at) == 0;
    (void)close(fd);
    return good;
}

bool etcd_is_healthy(const etcd_server *e, int i)
{
    char answer[1024];
    int status;
    ck_assert_msg(waitpid(e->pids[i], &status, WNOHANG) == 0,
                  "etcd has ended: see %s", e->folder);
    if (e->tls) return accepts(e->ports[i]);
    ask_health(e->ports[i], answer, sizeof answer);
    return strstr(answer, "\"true\"") != NULL;
}

void etcd_wait_healthy(const etcd_server *e, int i)
{
    const uint64_t stop = weft_clock_now_ns() + 30000 * MS;
    const struct timespec moment = {.tv_nsec = 20000000};
    while (!etcd_is_healthy(e, i)) {
        ck_assert_msg(weft_clock_now_ns() < stop, "etcd does not get healthy");
        (void)nanosleep(&moment, NULL);
    }
}

void etcd_signal(etcd_server *e, int i, int number)
{
    ck_assert_int_ne(e->pids[i], 0);
    ck_assert_int_eq(kill(e->pids[i], number), 0);
}

void etcd_kill(etcd_server *e, int i)
{
    int status;
    if (e->pids[i] == 0) return;
    (void)kill(e->pids[i], SIGKILL);
    (void)waitpid(e->pids[i], &status, 0);
    e->pids[i] = 0;
}

static int remove_one(const char *path, const struct stat *what, int kind,
                      struct FTW *where)
{
    (void)what;
    (void)kind;
    (void)where;
    return remove(path);
}

static void remove_tree(const char *path)
{
    enum { OPEN_MAX_FOLDERS = 8 };
    (void)nftw(path, remove_one, OPEN_MAX_FOLDERS, FTW_DEPTH | FTW_PHYS);
}

void etcd_empty(etcd_server *e, int i)
{
    char path[96];
    ck_assert_int_eq(e->pids[i], 0);
    (void)snprintf(path, sizeof path, "%s/m%d", e->folder, i);
    remove_tree(path);
}

void etcd_end(etcd_server *e)
{
    for (int i = 0; i < e->n; i++) etcd_kill(e, i);
    remove_tree(e->folder);
}

void etcd_shell(const etcd_server *e, const char *line, char *out,
                int out_bytes)
{
    ck_assert_int_eq(setenv("E", e->endpoints, 1), 0);
    (void)fflush(NULL);
    FILE *const from = popen(line, "r");
    ck_assert_ptr_nonnull(from);
    const size_t n = fread(out, 1, (size_t)out_bytes - 1, from);
    out[n] = '\0';
    ck_assert_msg(pclose(from) == 0, "%s: %s", line, out);
}
