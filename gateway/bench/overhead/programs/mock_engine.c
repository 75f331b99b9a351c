/* Fast mock of an OpenAI-compatible engine, for measuring what sits in front of it.
 *
 *   gcc -O2 -o mock_engine mock_engine.c && ./mock_engine PORT [MODEL]
 *
 * One thread, epoll, loopback only. The request body steers the answer, through
 * fields every gateway passes on:
 *   "stream": true   SSE instead of one JSON document (~600 bytes)
 *   "max_tokens": N  number of content chunks of a stream (default 64)
 *   "seed": US       pause between the chunks in microseconds; all streams of one
 *                    pause share a time grid, as a batching engine's steps do.
 *                    0 or absent: all chunks at once, in one write.
 *   "top_k": US      until the first chunk of a stream that pauses, which else goes
 *                    with the head
 * Each chunk carries "@T" and 16 digits, CLOCK_MONOTONIC in ns / 10 at the moment
 * of the write, so that load.c reads the one-way delay of every chunk.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MAXFD 8192
struct conn {
  char *in; int in_len, in_cap;      /* unread request bytes */
  char *out; int out_len, out_cap;   /* unsent response bytes */
  int left, pos_active; uint64_t due, step;
  int usage, want_out;
};
static struct conn *conns[MAXFD];
static int active[MAXFD], n_active, ep, tfd;
static const char *model = "mock-model";
static unsigned long long served;

static uint64_t now_ns(void) {
  struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void put(struct conn *c, const char *s, int n) {
  if (c->out_len + n > c->out_cap) {
    c->out_cap = (c->out_len + n) * 2 + 4096;
    c->out = realloc(c->out, c->out_cap);
  }
  memcpy(c->out + c->out_len, s, n); c->out_len += n;
}
static void deactivate(struct conn *c) {
  if (c->pos_active < 0) return;
  int last = active[--n_active];
  active[c->pos_active] = last; conns[last]->pos_active = c->pos_active;
  c->pos_active = -1;
}
static void drop(int fd) {
  struct conn *c = conns[fd];
  if (!c) return;
  deactivate(c); free(c->in); free(c->out); free(c);
  conns[fd] = NULL; close(fd);
}
static int flush_out(int fd) {
  struct conn *c = conns[fd];
  int off = 0;
  while (off < c->out_len) {
    ssize_t n = send(fd, c->out + off, c->out_len - off, MSG_NOSIGNAL);
    if (n < 0) { if (errno == EAGAIN) break; drop(fd); return -1; }
    off += n;
  }
  if (off) { memmove(c->out, c->out + off, c->out_len - off); c->out_len -= off; }
  int want = c->out_len > 0;
  if (want != c->want_out) {
    struct epoll_event e = {.events = EPOLLIN | (want ? EPOLLOUT : 0), .data.fd = fd};
    epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e); c->want_out = want;
  }
  return 0;
}
static void http_chunk(struct conn *c, const char *s, int n) {
  char h[16]; int k = snprintf(h, sizeof h, "%x\r\n", n);
  put(c, h, k); put(c, s, n); put(c, "\r\n", 2);
}
static void sse(struct conn *c, const char *choices, const char *tail) {
  char b[1024];
  int n = snprintf(b, sizeof b,
    "data: {\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion.chunk\","
    "\"created\":1760000000,\"model\":\"%s\",\"choices\":[%s]%s}\n\n", model, choices, tail);
  http_chunk(c, b, n);
}
static void one_chunk(struct conn *c) {
  char b[256];
  snprintf(b, sizeof b, "{\"index\":0,\"delta\":{\"content\":\" @T%016llu\"},\"logprobs\":null,\"finish_reason\":null}",
           (unsigned long long)(now_ns() / 10));
  sse(c, b, "");
  if (--c->left == 0) {
    sse(c, "{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\"}", "");
    if (c->usage)
      sse(c, "", ",\"usage\":{\"prompt_tokens\":21,\"completion_tokens\":64,\"total_tokens\":85}");
    http_chunk(c, "data: [DONE]\n\n", 14);
    put(c, "0\r\n\r\n", 5);
  }
}
static void plain(struct conn *c, const char *type, const char *body) {
  char h[256];
  int n = snprintf(h, sizeof h, "HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n", type, strlen(body));
  put(c, h, n); put(c, body, strlen(body));
}
static long field(const char *b, const char *key, long dflt) {
  const char *p = strstr(b, key);
  if (!p) return dflt;
  p += strlen(key);
  while (*p == ' ' || *p == ':') p++;
  return *p >= '0' && *p <= '9' ? atol(p) : dflt;
}
static void answer(struct conn *c, const char *head, const char *body) {
  char b[2048];
  served++;
  if (!strncmp(head, "POST /v1/chat/completions ", 26) || !strncmp(head, "POST /v1/completions ", 21)) {
    const char *s = strstr(body, "\"stream\"");
    int stream = 0;
    if (s) { s += 8; while (*s == ' ' || *s == ':') s++; stream = *s == 't'; }
    if (!stream) {
      snprintf(b, sizeof b,
        "{\"id\":\"chatcmpl-0123456789abcdef0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1760000000,"
        "\"model\":\"%s\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox jumps over "
        "the lazy dog and then it runs away into the deep dark forest where nobody will ever find it again, or so it hopes.\","
        "\"refusal\":null,\"tool_calls\":[]},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null}],"
        "\"usage\":{\"prompt_tokens\":21,\"completion_tokens\":32,\"total_tokens\":53,\"prompt_tokens_details\":null},"
        "\"prompt_logprobs\":null,\"system_fingerprint\":\"fp_mock\"}", model);
      plain(c, "application/json", b);
      return;
    }
    static const char h[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                            "cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
    put(c, h, sizeof h - 1);
    c->left = field(body, "\"max_tokens\"", field(body, "\"max_completion_tokens\"", 64)); if (c->left < 1) c->left = 1;
    c->step = field(body, "\"seed\"", 0) * 1000ull;
    c->usage = strstr(body, "\"include_usage\"") != NULL;
    if (!c->step) { while (c->left) one_chunk(c); return; }
    long first = field(body, "\"top_k\"", 0);
    if (first) { c->due = now_ns() + first * 1000ull; return; }
    one_chunk(c);  /* the first chunk goes with the head: what a client waits for it is the gateway's doing */
    c->due = (now_ns() / c->step + 1) * c->step;
    return;
  }
  if (!strncmp(head, "GET /v1/models", 14))
    snprintf(b, sizeof b, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"created\":1760000000,"
             "\"owned_by\":\"mock\",\"root\":\"%s\",\"max_model_len\":131072}]}", model, model);
  else if (!strncmp(head, "GET /metrics", 12)) {
    snprintf(b, sizeof b, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"%s\"} %d.0\n"
             "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=\"%s\"} 0.0\n"
             "# TYPE mock_served_total counter\nmock_served_total %llu\n", model, n_active, model, served);
    plain(c, "text/plain; version=0.0.4", b);
    return;
  } else
    snprintf(b, sizeof b, "{\"status\":\"ok\",\"version\":\"0.11.0\",\"model_path\":\"%s\",\"served_model_name\":\"%s\","
             "\"tokenizer_path\":\"\",\"is_generation\":true,\"tp_size\":1,\"dp_size\":1}", model, model);
  plain(c, "application/json", b);
}
/* Answers every complete request in the buffer; a paced stream holds the rest back. */
static int requests(int fd) {
  struct conn *c = conns[fd];
  while (c->left == 0 && c->in_len) {
    c->in[c->in_len] = 0;
    char *e = strstr(c->in, "\r\n\r\n");
    if (!e) break;
    int head = e + 4 - c->in, body = 0;
    *e = 0;
    char *p = strcasestr(c->in, "\ncontent-length:");
    int chunked = !p && strcasestr(c->in, "\ntransfer-encoding: chunked") != NULL;
    *e = '\r';
    if (p) body = atoi(p + 16);
    else if (chunked) {
      char *z = strstr(c->in + head, "0\r\n\r\n");
      if (!z) break;
      body = z + 5 - (c->in + head);
    }
    if (c->in_len < head + body) break;
    char keep = c->in[head + body]; c->in[head + body] = 0;
    answer(c, c->in, c->in + head);
    c->in[head + body] = keep;
    memmove(c->in, c->in + head + body, c->in_len - head - body);
    c->in_len -= head + body;
    if (c->left) { c->pos_active = n_active; active[n_active++] = fd; }
  }
  return c->out_len ? flush_out(fd) : 0;
}
static void arm(void) {
  uint64_t d = UINT64_MAX;
  for (int i = 0; i < n_active; i++) if (conns[active[i]]->due < d) d = conns[active[i]]->due;
  struct itimerspec it = {0};
  if (n_active) { it.it_value.tv_sec = d / 1000000000ull; it.it_value.tv_nsec = d % 1000000000ull; }
  timerfd_settime(tfd, TFD_TIMER_ABSTIME, &it, NULL);
}
static void tick(void) {
  uint64_t now = now_ns();
  for (int i = n_active - 1; i >= 0; i--) {
    if (i >= n_active) continue;
    int fd = active[i]; struct conn *c = conns[fd];
    if (c->due > now) continue;
    c->due += c->step;
    if (c->due <= now) c->due = (now / c->step + 1) * c->step;
    one_chunk(c);
    int done = c->left == 0;
    if (done) deactivate(c);
    if (flush_out(fd) == 0 && done) requests(fd);
  }
}
int main(int argc, char **argv) {
  int port = argc > 1 ? atoi(argv[1]) : 9001, one = 1;
  if (argc > 2) model = argv[2];
  int ls = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(ls, (void *)&a, sizeof a) || listen(ls, 4096)) { perror("mock_engine"); return 1; }
  ep = epoll_create1(0); tfd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
  struct epoll_event e = {.events = EPOLLIN, .data.fd = ls}, ev[512];
  epoll_ctl(ep, EPOLL_CTL_ADD, ls, &e);
  e.data.fd = tfd; epoll_ctl(ep, EPOLL_CTL_ADD, tfd, &e);
  for (;;) {
    int n = epoll_wait(ep, ev, 512, -1), rearm = 0;
    for (int i = 0; i < n; i++) {
      int fd = ev[i].data.fd;
      if (fd == tfd) { uint64_t x; if (read(tfd, &x, 8) > 0) { tick(); rearm = 1; } continue; }
      if (fd == ls) {
        int f;
        while ((f = accept4(ls, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
          if (f >= MAXFD) { close(f); continue; }
          setsockopt(f, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
          conns[f] = calloc(1, sizeof(struct conn)); conns[f]->pos_active = -1;
          e.events = EPOLLIN; e.data.fd = f; epoll_ctl(ep, EPOLL_CTL_ADD, f, &e);
        }
        continue;
      }
      struct conn *c = conns[fd];
      if (!c) continue;
      if (ev[i].events & EPOLLIN) {
        int gone = 0;
        for (;;) {
          if (c->in_cap - c->in_len < 65536 + 1) { c->in_cap = c->in_len + 131072; c->in = realloc(c->in, c->in_cap); }
          ssize_t r = recv(fd, c->in + c->in_len, 65536, 0);
          if (r > 0) { c->in_len += r; if (r < 65536) break; continue; }
          gone = r == 0 || errno != EAGAIN;
          break;
        }
        if (gone) { drop(fd); continue; }
        int before = n_active;
        if (requests(fd) < 0) continue;
        if (n_active != before) rearm = 1;
      } else if (ev[i].events & (EPOLLERR | EPOLLHUP)) { drop(fd); continue; }
      if (ev[i].events & EPOLLOUT) flush_out(fd);
    }
    if (rearm) arm();
  }
}
