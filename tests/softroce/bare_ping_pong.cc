// bare_ping_pong: a ping-pong of the work requests that a hop is made of, over plain libibverbs, without any code of
// ours in between. What `fastdecode latency fabric` measures is held against it.
//
//   bare_ping_pong --listen PORT [--device NAME]                  one end, which only answers, once
//   bare_ping_pong --connect HOST:PORT [--device NAME] [...]      the other, which measures and prints round trips
//
// A message is a line of 64 bytes and a payload: up to 8 KiB one WRITE_WITH_IMM, a longer one a WRITE of the payload and
// a WRITE_WITH_IMM of the line with one doorbell.
// Both ends poll one completion queue; nobody looks at the payload.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"

namespace fastdecode {

namespace {

constexpr size_t kOneWriteBytesMax = 8 << 10;
constexpr size_t kLineBytes = 64;
constexpr size_t kPayloadBytesMax = 4 << 20;
constexpr size_t kMessageBytesMax = kLineBytes + kPayloadBytesMax;
constexpr uint32_t kInlineBytes = 128;
constexpr uint32_t kSendDepth = 128;  // work requests
constexpr uint32_t kReceiveDepth = 64;
constexpr uint32_t kSignalEvery = kSendDepth / 4;
constexpr uint64_t kPatienceNs = 30'000'000'000;

struct Flags {
  int listen_port = 0;
  std::string connect;
  std::string device;
  std::vector<uint32_t> sizes = {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
  uint32_t round_trips = 1000;
  uint32_t warmup = 50;
  bool json = false;
};

// What one end tells the other before they connect their queue pairs.
struct EndPoint {
  ibv_gid gid;
  uint64_t address;
  uint32_t key;
  uint32_t queue_pair_number;
  uint32_t packet_number;
  uint32_t mtu;
};

// What the measuring end wants the other to answer.
struct Order {
  uint32_t sizes;
  uint32_t round_trips_each;  // warm-up included
};

[[noreturn]] void Fail(const std::string& what, int error = errno) {
  std::fprintf(stderr, "bare_ping_pong: %s: %s\n", what.c_str(), std::strerror(error));
  std::exit(1);
}

uint64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// ---- TCP, for the exchange before and after.

class TcpConnection {
 public:
  static TcpConnection Listen(int port) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) Fail("bind");
    if (listen(listener, 1) != 0) Fail("listen");
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) Fail("accept");
    close(listener);
    return TcpConnection(fd);
  }

  // Tries for 30 s: the other end may start later.
  static TcpConnection Connect(const std::string& target) {
    const size_t colon = target.rfind(':');
    if (colon == std::string::npos) Fail("--connect " + target + " is not HOST:PORT", EINVAL);
    addrinfo hints = {};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error = getaddrinfo(target.substr(0, colon).c_str(), target.substr(colon + 1).c_str(), &hints, &found);
    if (error != 0) Fail(target + ": " + gai_strerror(error), EINVAL);
    const uint64_t deadline_ns = NowNs() + 30'000'000'000;
    while (true) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) return TcpConnection(fd);
      if (NowNs() > deadline_ns) Fail("connect to " + target);
      close(fd);
      usleep(100'000);
    }
  }

  template <typename T>
  void Send(const T& value) {
    if (send(fd_, &value, sizeof(value), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(value))) Fail("send");
  }
  template <typename T>
  T Receive() {
    T value;
    if (recv(fd_, &value, sizeof(value), MSG_WAITALL) != static_cast<ssize_t>(sizeof(value)))
      Fail("the other end left");
    return value;
  }

 private:
  explicit TcpConnection(int fd) : fd_(fd) {
    const timeval patience = {30, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }

  int fd_;
};

// ---- One end: queue pair, memory, and a message each way.

class PingPongEnd {
 public:
  explicit PingPongEnd(const std::string& device_name) : in_(kMessageBytesMax), out_(kMessageBytesMax) {
    OpenDevice(device_name);
    FindGid();
    MakeQueues();
  }

  void ConnectTo(TcpConnection* tcp) {
    tcp->Send(EndPoint{gid_, reinterpret_cast<uint64_t>(in_.data()), in_region_->rkey, queue_pair_->qp_num,
                       packet_number_, static_cast<uint32_t>(port_.active_mtu)});
    peer_ = tcp->Receive<EndPoint>();
    ModifyQueuePair();
    BuildRequests();
    tcp->Send(char{1});  // ready to receive
    tcp->Receive<char>();
  }

  // Writes a line and `bytes` of payload to the other end and announces them.
  void Post(uint32_t bytes) {
    const bool one_write = kLineBytes + bytes <= kOneWriteBytesMax;
    whole_.length = static_cast<uint32_t>(one_write ? kLineBytes + bytes : kLineBytes);
    piece_.length = bytes;
    notify_.send_flags = whole_.length <= inline_bytes_max_ ? IBV_SEND_INLINE : 0;
    unsignaled_ += one_write ? 1 : 2;
    if (unsignaled_ >= kSignalEvery) {
      notify_.send_flags |= IBV_SEND_SIGNALED;
      unsignaled_ = 0;
    }
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(queue_pair_, one_write ? &notify_ : &write_, &bad);
    if (error != 0) Fail("ibv_post_send", error);
  }

  // Until the other end's message is in.
  void AwaitMessage() {
    uint64_t polls = 0;
    uint64_t deadline_ns = 0;
    while (true) {
      ibv_wc completion;
      const int count = ibv_poll_cq(completions_, 1, &completion);
      if (count < 0) Fail("ibv_poll_cq");
      if (count == 0) {
        // As every program that spins should; under emulation it costs far more than on a CPU.
        __builtin_ia32_pause();
        if (++polls % 4096 != 0) continue;
        const uint64_t now_ns = NowNs();
        if (deadline_ns == 0) deadline_ns = now_ns + kPatienceNs;
        if (now_ns > deadline_ns) Fail("no message from the other end for 30 s", ETIMEDOUT);
        continue;
      }
      if (completion.status != IBV_WC_SUCCESS) Fail(ibv_wc_status_str(completion.status), EIO);
      if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM) continue;  // our own sends
      if (++receives_used_ == kReceiveDepth / 2) PostReceives(kReceiveDepth / 2);
      return;
    }
  }

  std::string device_name() const { return ibv_get_device_name(context_->device); }
  int gid_index() const { return gid_index_; }

 private:
  void OpenDevice(const std::string& name) {
    int count = 0;
    ibv_device** devices = ibv_get_device_list(&count);
    for (int i = 0; i < count && context_ == nullptr; ++i) {
      if (name.empty() || name == ibv_get_device_name(devices[i])) context_ = ibv_open_device(devices[i]);
    }
    if (context_ == nullptr) Fail("no RDMA device " + name, ENODEV);
    ibv_free_device_list(devices);
    const int error = ibv_query_port(context_, kPort, &port_);
    if (error != 0) Fail("ibv_query_port", error);
  }

  // RoCE v2 over IPv4, wherever it is in the table.
  void FindGid() {
    for (int i = 0; i < port_.gid_tbl_len; ++i) {
      ibv_gid_entry entry;
      if (ibv_query_gid_ex(context_, kPort, static_cast<uint32_t>(i), &entry, 0) != 0) continue;
      const bool ipv4 = IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(entry.gid.raw));
      if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || !ipv4) continue;
      gid_ = entry.gid;
      gid_index_ = i;
      return;
    }
    Fail(device_name() + " has no GID that is RoCE v2 over IPv4", ENOENT);
  }

  void MakeQueues() {
    domain_ = ibv_alloc_pd(context_);
    if (domain_ == nullptr) Fail("ibv_alloc_pd");
    in_region_ = ibv_reg_mr(domain_, in_.data(), in_.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    out_region_ = ibv_reg_mr(domain_, out_.data(), out_.size(), 0);
    if (in_region_ == nullptr || out_region_ == nullptr) Fail("ibv_reg_mr");
    completions_ = ibv_create_cq(context_, kSendDepth + kReceiveDepth, nullptr, nullptr, 0);
    if (completions_ == nullptr) Fail("ibv_create_cq");
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = attributes.recv_cq = completions_;
    attributes.cap = {kSendDepth, kReceiveDepth, 1, 1, kInlineBytes};
    attributes.qp_type = IBV_QPT_RC;
    queue_pair_ = ibv_create_qp(domain_, &attributes);
    if (queue_pair_ == nullptr) Fail("ibv_create_qp");
    inline_bytes_max_ = std::min(attributes.cap.max_inline_data, kInlineBytes);
    packet_number_ = std::random_device()() & 0xffffff;
  }

  void ModifyQueuePair() {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = kPort;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    Modify(&attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    PostReceives(kReceiveDepth);

    attributes = {};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = std::min(port_.active_mtu, static_cast<ibv_mtu>(peer_.mtu));
    attributes.dest_qp_num = peer_.queue_pair_number;
    attributes.rq_psn = peer_.packet_number;
    attributes.min_rnr_timer = 12;
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.port_num = kPort;
    attributes.ah_attr.grh.dgid = peer_.gid;
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index_);
    attributes.ah_attr.grh.hop_limit = 64;
    Modify(&attributes, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

    attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = packet_number_;
    attributes.timeout = 14;
    attributes.retry_cnt = 6;
    attributes.rnr_retry = 3;
    Modify(&attributes, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_MAX_QP_RD_ATOMIC);
  }

  void Modify(ibv_qp_attr* attributes, int mask) {
    const int error = ibv_modify_qp(queue_pair_, attributes, mask);
    if (error != 0) Fail("ibv_modify_qp", error);
  }

  void BuildRequests() {
    whole_ = piece_ = {reinterpret_cast<uint64_t>(out_.data()), 0, out_region_->lkey};
    piece_.addr += kLineBytes;
    notify_.sg_list = &whole_;
    notify_.num_sge = 1;
    notify_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    notify_.imm_data = htonl(1);
    notify_.wr.rdma.remote_addr = peer_.address;
    notify_.wr.rdma.rkey = peer_.key;
    write_ = notify_;
    write_.next = &notify_;
    write_.sg_list = &piece_;
    write_.wr.rdma.remote_addr += kLineBytes;
    write_.opcode = IBV_WR_RDMA_WRITE;
  }

  void PostReceives(uint32_t count) {
    receives_used_ = 0;
    ibv_recv_wr requests[kReceiveDepth] = {};  // of no bytes: an immediate needs none
    for (uint32_t i = 0; i + 1 < count; ++i) requests[i].next = &requests[i + 1];
    ibv_recv_wr* bad = nullptr;
    const int error = ibv_post_recv(queue_pair_, requests, &bad);
    if (error != 0) Fail("ibv_post_recv", error);
  }

  static constexpr uint8_t kPort = 1;

  std::vector<uint8_t> in_;
  std::vector<uint8_t> out_;
  ibv_context* context_ = nullptr;
  ibv_port_attr port_ = {};
  ibv_gid gid_ = {};
  int gid_index_ = -1;
  ibv_pd* domain_ = nullptr;
  ibv_mr* in_region_ = nullptr;
  ibv_mr* out_region_ = nullptr;
  ibv_cq* completions_ = nullptr;
  ibv_qp* queue_pair_ = nullptr;
  uint32_t inline_bytes_max_ = 0;
  uint32_t packet_number_ = 0;
  EndPoint peer_ = {};

  ibv_sge whole_ = {};
  ibv_sge piece_ = {};
  ibv_send_wr notify_ = {};
  ibv_send_wr write_ = {};
  uint32_t unsignaled_ = 0;  // work requests behind the last that asked for a completion
  uint32_t receives_used_ = 0;
};

// ---- The two roles.

void Answer(PingPongEnd* end, TcpConnection* tcp) {
  const auto order = tcp->Receive<Order>();
  for (uint32_t i = 0; i < order.sizes; ++i) {
    const auto bytes = tcp->Receive<uint32_t>();
    tcp->Send(bytes);
    for (uint32_t trip = 0; trip < order.round_trips_each; ++trip) {
      end->AwaitMessage();
      end->Post(bytes);
    }
  }
  tcp->Receive<char>();
}

// Sorted round trips.
std::vector<uint64_t> Measure(PingPongEnd* end, uint32_t bytes, const Flags& flags) {
  std::vector<uint64_t> times_ns;
  times_ns.reserve(flags.round_trips);
  for (uint32_t trip = 0; trip < flags.warmup + flags.round_trips; ++trip) {
    const uint64_t start_ns = NowNs();
    end->Post(bytes);
    end->AwaitMessage();
    if (trip >= flags.warmup) times_ns.push_back(NowNs() - start_ns);
  }
  std::sort(times_ns.begin(), times_ns.end());
  return times_ns;
}

void PrintRow(uint32_t bytes, const std::vector<uint64_t>& sorted_ns, bool json, bool first) {
  const auto us = [&](double share) {
    const auto rank = static_cast<size_t>(share * static_cast<double>(sorted_ns.size() - 1) + 0.5);
    return static_cast<double>(sorted_ns[rank]) / 1000;
  };
  const char* format = json ? "%s    {\"bytes\": %u, \"round_trip_us\": {\"min\": %.2f, \"p50\": %.2f, \"p90\": %.2f, "
                              "\"p99\": %.2f, \"max\": %.2f}}"
                            : "%s%8u %10.2f %10.2f %10.2f %10.2f %10.2f\n";
  std::printf(format, json && !first ? ",\n" : "", bytes, us(0), us(0.5), us(0.9), us(0.99), us(1));
  std::fflush(stdout);
}

void Ask(PingPongEnd* end, TcpConnection* tcp, const Flags& flags) {
  if (flags.json) {
    std::printf("{\n  \"device\": \"%s\", \"gid_index\": %d, \"round_trips\": %u,\n  \"sizes\": [\n",
                end->device_name().c_str(), end->gid_index(), flags.round_trips);
  } else {
    std::printf("%s, GID index %d, %u round trips a size\n%8s %10s %10s %10s %10s %10s\n", end->device_name().c_str(),
                end->gid_index(), flags.round_trips, "bytes", "min us", "p50 us", "p90 us", "p99 us", "max us");
  }
  tcp->Send(Order{static_cast<uint32_t>(flags.sizes.size()), flags.warmup + flags.round_trips});
  for (size_t i = 0; i < flags.sizes.size(); ++i) {
    tcp->Send(flags.sizes[i]);
    tcp->Receive<uint32_t>();
    PrintRow(flags.sizes[i], Measure(end, flags.sizes[i], flags), flags.json, i == 0);
  }
  if (flags.json) std::printf("\n  ]\n}\n");
  tcp->Send(char{0});
}

void Run(const Flags& flags) {
  PingPongEnd end(flags.device);
  TcpConnection tcp =
      flags.listen_port != 0 ? TcpConnection::Listen(flags.listen_port) : TcpConnection::Connect(flags.connect);
  end.ConnectTo(&tcp);
  if (flags.listen_port != 0) {
    Answer(&end, &tcp);
  } else {
    Ask(&end, &tcp, flags);
  }
}

}  // namespace

}  // namespace fastdecode

int main(int argc, char** argv) {
  fastdecode::Flags flags;
  CLI::App program("Round trips of a hop's work requests over plain libibverbs");
  CLI::Option* listen = program.add_option("--listen", flags.listen_port, "answer on this TCP port")->type_name("PORT");
  CLI::Option* connect = program.add_option("--connect", flags.connect, "measure")->type_name("HOST:PORT");
  listen->excludes(connect);
  program.add_option("--device", flags.device, "RDMA device (default: the first)")->type_name("NAME");
  program.add_option("--sizes", flags.sizes, "bytes of payload each way, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(size_t{1}, fastdecode::kPayloadBytesMax));
  program.add_option("--round-trips", flags.round_trips, "of each size, warm-up not counted")
      ->check(CLI::PositiveNumber);
  program.add_option("--warmup", flags.warmup, "round trips before those");
  program.add_flag("--json", flags.json, "one JSON object");
  CLI11_PARSE(program, argc, argv);
  if (listen->count() + connect->count() != 1) {
    std::fprintf(stderr, "bare_ping_pong: give --listen PORT or --connect HOST:PORT\n");
    return 2;
  }
  fastdecode::Run(flags);
  return 0;
}
