/* Closed-loop HTTP/1.1 load generator that understands mock_engine.c's chunks.
 *
 *   gcc -O2 -o load load.c
 *   ./load PORT CONNS SECONDS BODY_FILE [PATH] [HEADER]
 *
 * Loopback only, one thread, epoll, CONNS keep-alive connections, one request in
 * flight on each. The first 20 % of the time is warm-up and not counted. Prints one
 * JSON line: requests/s, latency of whole responses, time to the first body byte
 * (ttft), one-way delay of each chunk from the engine's write to here (delay), gap
 * between chunks of one stream (gap), all in microseconds; chunks/s; errors.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void) {
  struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + t.tv_nsec;
}
/* log-linear histogram of nanoseconds: 64 steps to the octave */
struct hist { uint64_t n, bin[64 * 40], max; double sum; };
static void add(struct hist *h, uint64_t v) {
  int o = v < 64 ? 0 : 63 - __builtin_clzll(v) - 5;
  int i = o * 64 + (v < 64 ? (int)v : (int)((v >> (o - 1 < 0 ? 0 : o - 1)) & 63));
  if (i >= 64 * 40) i = 64 * 40 - 1;
  h->bin[i]++; h->n++; h->sum += v; if (v > h->max) h->max = v;
}
static double pct(struct hist *h, double p) {
  uint64_t want = (uint64_t)(p * h->n), s = 0;
  for (int i = 0; i < 64 * 40; i++)
    if ((s += h->bin[i]) > want) {
      int o = i / 64, k = i % 64;
      return o == 0 ? k / 1e3 : (((64ull | k) << (o - 1)) + ((1ull << (o - 1)) >> 1)) / 1e3;
    }
  return h->max / 1e3;
}
static void show(const char *name, struct hist *h) {
  if (!h->n) return;
  printf(", \"%s\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f, \"mean\": %.1f}", name,
         pct(h, .5), pct(h, .9), pct(h, .99), pct(h, .999), h->max / 1e3, h->sum / h->n / 1e3);
}
enum { LINE, HEAD, BODY, UNTIL_CLOSE, SIZE, DATA, DATA_END, TRAILER };
struct conn {
  int fd, sent, state, status, chunked, line_len, mark, first; char line[512];
  long left; uint64_t start, last, digits;
};
static char *req; static int req_len, port, ep, stop_new, in_flight; static uint64_t t_count;
static struct hist lat, ttft, delay, gap;
static unsigned long long n_ok, n_err, n_total, n_chunk_total, n_chunk, n_byte, n_reconnect; static int last_bad;

static void write_req(struct conn *c) {
  while (c->sent < req_len) {
    ssize_t n = send(c->fd, req + c->sent, req_len - c->sent, MSG_NOSIGNAL);
    if (n < 0) break;
    c->sent += n;
  }
  struct epoll_event e = {.events = EPOLLIN | (c->sent < req_len ? EPOLLOUT : 0), .data.ptr = c};
  epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}
static void begin(struct conn *c) {
  in_flight++;
  c->sent = 0; c->state = LINE; c->line_len = 0; c->mark = 0; c->first = 1; c->chunked = 0; c->left = -1; c->last = 0;
  c->start = now_ns();
  int n = send(c->fd, req, req_len, MSG_NOSIGNAL);
  if (n == req_len) { c->sent = n; return; }
  if (n > 0) c->sent = n;
  write_req(c);
}
static void open_conn(struct conn *c) {
  int one = 1;
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  c->fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(c->fd, (void *)&a, sizeof a)) { perror("connect"); exit(1); }
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(c->fd, F_SETFL, O_NONBLOCK);
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
  epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
}
static void reopen(struct conn *c) { in_flight--; close(c->fd); n_reconnect++; open_conn(c); if (!stop_new) begin(c); }
static void done(struct conn *c, uint64_t now) {
  n_total++; in_flight--;
  if (c->status != 200) { n_err++; last_bad = c->status; }
  else if (now >= t_count && !stop_new) { n_ok++; add(&lat, now - c->start); }
  if (!stop_new) begin(c);
}
static void payload(struct conn *c, const char *p, int n, uint64_t now) {
  if (now >= t_count && !stop_new) n_byte += n;
  if (c->first && n) { c->first = 0; if (now >= t_count && !stop_new) add(&ttft, now - c->start); }
  for (const char *end = p + n; p < end; p++) {
    if (c->mark == 0) { p = memchr(p, '@', end - p); if (!p) return; c->mark = 1; }
    else if (c->mark == 1) { c->mark = *p == 'T' ? 2 : 0; c->digits = 0; }
    else {
      if (*p < '0' || *p > '9') { c->mark = 0; continue; }
      c->digits = c->digits * 10 + *p - '0';
      if (++c->mark == 18) {
        c->mark = 0; n_chunk_total++;
        if (now >= t_count && !stop_new) {
          n_chunk++; add(&delay, now > c->digits * 10 ? now - c->digits * 10 : 0);
          if (c->last) add(&gap, now - c->last);
        }
        c->last = now;
      }
    }
  }
}
/* returns 0 to go on, 1 when the response ended */
static int feed(struct conn *c, const char *p, int n, uint64_t now) {
  const char *end = p + n;
  while (p < end) {
    if (c->state == BODY || c->state == DATA || c->state == UNTIL_CLOSE) {
      int k = end - p;
      if (c->state != UNTIL_CLOSE && k > c->left) k = c->left;
      payload(c, p, k, now); p += k;
      if (c->state == UNTIL_CLOSE) continue;
      c->left -= k;
      if (c->left == 0) { if (c->state == BODY) return 1; c->state = DATA_END; }
      continue;
    }
    const char *nl = memchr(p, '\n', end - p);
    int k = (nl ? nl : end) - p;
    if (c->line_len + k < (int)sizeof c->line) { memcpy(c->line + c->line_len, p, k); c->line_len += k; }
    if (!nl) return 0;
    p = nl + 1;
    if (c->line_len && c->line[c->line_len - 1] == '\r') c->line_len--;
    c->line[c->line_len] = 0;
    int len = c->line_len; c->line_len = 0;
    switch (c->state) {
    case LINE: c->status = atoi(c->line + 9); c->state = HEAD; break;
    case HEAD:
      if (len == 0) {
        if (c->status == 100) { c->state = LINE; break; }
        if (c->chunked) c->state = SIZE;
        else if (c->left == 0) return 1;
        else c->state = c->left > 0 ? BODY : UNTIL_CLOSE;
      } else if (!strncasecmp(c->line, "content-length:", 15)) c->left = atol(c->line + 15);
      else if (!strncasecmp(c->line, "transfer-encoding:", 18)) c->chunked = 1;
      break;
    case SIZE: c->left = strtol(c->line, NULL, 16); c->state = c->left ? DATA : TRAILER; break;
    case DATA_END: c->state = SIZE; break;
    case TRAILER: if (len == 0) return 1; break;
    }
  }
  return 0;
}
int main(int argc, char **argv) {
  if (argc < 5) { fprintf(stderr, "usage: load PORT CONNS SECONDS BODY_FILE [PATH] [HEADER]\n"); return 2; }
  port = atoi(argv[1]); int n = atoi(argv[2]); double secs = atof(argv[3]);
  FILE *f = fopen(argv[4], "rb"); if (!f) { perror(argv[4]); return 2; }
  char *body = malloc(1 << 22); int blen = fread(body, 1, 1 << 22, f);
  req = malloc(blen + 1024);
  req_len = sprintf(req, "POST %s HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
                    "accept: */*\r\nuser-agent: load/1\r\n%s%scontent-length: %d\r\n\r\n",
                    argc > 5 ? argv[5] : "/v1/chat/completions", port,
                    argc > 6 ? argv[6] : "", argc > 6 ? "\r\n" : "", blen);
  memcpy(req + req_len, body, blen); req_len += blen;
  ep = epoll_create1(0);
  struct conn *cs = calloc(n, sizeof *cs);
  static char buf[1 << 18];
  for (int i = 0; i < n; i++) open_conn(&cs[i]); /* blocks for seconds where a listen backlog is short: not on the clock */
  uint64_t t0 = now_ns(), t_end = t0 + secs * 1e9, now = t0;
  t_count = t0 + secs * 0.2e9;
  for (int i = 0; i < n; i++) begin(&cs[i]);
  struct epoll_event ev[1024];
  while (1) {
    now = now_ns();
    if (!stop_new && now >= t_end) { stop_new = 1; t_end = now; }
    /* what is in flight at the end may finish, uncounted, so that no target is left with aborted streams */
    if (stop_new && (in_flight == 0 || now > t_end + 2500000000ull)) break;
    int k = epoll_wait(ep, ev, 1024, 50);
    for (int i = 0; i < k; i++) {
      struct conn *c = ev[i].data.ptr;
      if (ev[i].events & EPOLLOUT) write_req(c);
      if (!(ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
      ssize_t r = recv(c->fd, buf, sizeof buf, 0);
      now = now_ns();
      if (r > 0) { if (feed(c, buf, r, now)) done(c, now); continue; }
      if (r < 0 && errno == EAGAIN) continue;
      if (c->state == UNTIL_CLOSE) { if (c->status == 200 && now >= t_count) { n_ok++; add(&lat, now - c->start); } }
      else if (!(c->state == LINE && c->line_len == 0)) n_err++;
      reopen(c);
    }
  }
  n_err += in_flight; /* what hangs is no success */
  double d = (t_end - t_count) / 1e9;
  printf("{\"conns\": %d, \"rps\": %.1f, \"chunks_s\": %.0f, \"mb_s\": %.2f, \"ok\": %llu, \"errors\": %llu, \"last_bad\": %d, \"reconnects\": %llu, \"total\": %llu, \"chunks_total\": %llu",
         n, n_ok / d, n_chunk / d, n_byte / d / 1e6, n_ok, n_err, last_bad, n_reconnect, n_total, n_chunk_total);
  show("lat", &lat); show("ttft", &ttft); show("delay", &delay); show("gap", &gap);
  printf("}\n");
  return 0;
}
