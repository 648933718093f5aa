#include "node/base/address.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "node/base/str.h"

weft_status weft_address_parse(const char *text, weft_address *address_out,
                               weft_err *err)
{
    weft_address address = {.port = 0};
    const char *colon = strrchr(text, ':');
    int64_t port = 0;
    if (colon == NULL || !weft_parse_i64(colon + 1, 0, UINT16_MAX, &port))
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "\"%.200s\" is no address (allowed: HOST:PORT, with a "
                         "port from 0 to 65535)",
                         text);
    const char *host = text;
    size_t n = (size_t)(colon - text);
    if (n >= 2 && host[0] == '[' && host[n - 1] == ']') {
        host++;
        n -= 2;
    } else if (memchr(host, ':', n) != NULL) {
        n = 0; /* an IPv6 host needs brackets to tell its port */
    }
    if (n == 0 || n >= sizeof address.host || memchr(host, '/', n) != NULL)
        return WEFT_FAIL(err, WEFT_INVALID_ARGUMENT,
                         "\"%.200s\" is no address (allowed: HOST:PORT or "
                         "[HOST]:PORT)",
                         text);
    memcpy(address.host, host, n);
    address.port = (uint16_t)port;
    *address_out = address;
    return WEFT_OK;
}

void weft_address_print(const weft_address *address,
                        char out[WEFT_ADDRESS_TEXT_BYTES])
{
    const bool brackets = strchr(address->host, ':') != NULL;
    (void)snprintf(out, WEFT_ADDRESS_TEXT_BYTES, brackets ? "[%s]:%u" : "%s:%u",
                   address->host, (unsigned)address->port);
}

/* A listening socket, or -1 and errno. */
static int listen_on(const struct addrinfo *at)
{
    const int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    const int one = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 &&
        listen(fd, SOMAXCONN) == 0)
        return fd;
    const int why = errno;
    (void)close(fd);
    errno = why;
    return -1;
}

static uint16_t port_of(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at = {.v6 = {.sin6_family = AF_UNSPEC}};
    socklen_t bytes = sizeof at;
    if (getsockname(fd, &at.any, &bytes) != 0) return 0;
    return ntohs(at.any.sa_family == AF_INET ? at.v4.sin_port
                                             : at.v6.sin6_port);
}

weft_status weft_address_listen(const weft_address *address, int *fd_out,
                                uint16_t *port_out, weft_err *err)
{
    char name[WEFT_ADDRESS_TEXT_BYTES], port[8];
    weft_address_print(address, name);
    (void)snprintf(port, sizeof port, "%u", (unsigned)address->port);

    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    const int resolved = getaddrinfo(address->host, port, &hints, &found);
    if (resolved != 0)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "cannot listen on %s: %s", name,
                         gai_strerror(resolved));
    const int fd = listen_on(found);
    const int why = errno;
    freeaddrinfo(found);
    if (fd < 0)
        return WEFT_FAIL(err, WEFT_UNAVAILABLE, "cannot listen on %s: %s", name,
                         strerror(why));
    *fd_out = fd;
    *port_out = port_of(fd);
    return WEFT_OK;
}
