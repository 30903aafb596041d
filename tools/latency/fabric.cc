// fastdecode latency fabric: what a hop costs on a link, over shared memory or RDMA, by size.
#include "tools/latency/fabric.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include <fastdecode/fastdecode.hpp>
#include "nlohmann/json.hpp"
#include "numa/clock.h"
#include "numa/pinned_thread.h"
#include "rdma/bootstrap.h"
#include "rdma/link_monitor.h"
#include "rdma/shm/local_link.h"
#include "tools/bench/summary.h"
#include "tools/interrupt.h"
#include "tools/latency/distribution.h"
#include "tools/latency/export/export_perftest.h"
#include "tools/latency/fabric_cores.h"
#include "tools/latency/fabric_echo.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

constexpr size_t kBytesMin = 8;
constexpr size_t kBytesMax = size_t{4} << 20;
constexpr uint64_t kConnectTimeoutNs = 10'000'000'000;
constexpr uint64_t kTurnNs = 100'000'000;
constexpr std::chrono::milliseconds kPause(20);

struct FabricFlags {
  std::string listen;
  std::string peer = "local";
  FabricOptions fabric;
  std::string cores;
  size_t bytes_min = kBytesMin;
  size_t bytes_max = kBytesMax;
  int rounds = 0;  // 0: by size
  bool touch = false;
  std::string format = "text";
  bool json = false;
};

struct Row {
  const char* shape = "";
  EchoPoint point;
  double gb_per_s = 0;     // of both directions together
  std::vector<double> us;  // sorted
  double median() const { return us[NearestRank(0.5, us.size())]; }
  // Nothing: withheld, as everywhere.
  std::optional<double> Percentile(double share) const {
    if (!EnoughBeyond(share, static_cast<double>(us.size()))) return std::nullopt;
    return us[NearestRank(share, us.size())];
  }
};

// ---- The far end

// One engine at a time, until interrupted.
void Serve(const FabricFlags& flags) {
  const absl::StatusOr<Endpoint> endpoint = ParseEndpoint("--listen", flags.listen, EndpointUse::kListen);
  ThrowUnlessOk(endpoint.status());
  const FabricCores cores(flags.cores, 1);
  absl::StatusOr<std::unique_ptr<Listener>> listener = ListenAt(*endpoint, flags.fabric);
  ThrowUnlessOk(listener.status());
  const InterruptGuard guard;
  // Only now: who reads that it listens may stop it.
  std::fprintf(stderr, "fastdecode: latency fabric listens on %s\n", FormatEndpoint(*endpoint).c_str());
  LinkMonitor monitor;
  while (InterruptGuard::Signal() == 0) {
    absl::StatusOr<std::unique_ptr<PendingLink>> pending = (*listener)->AcceptProposal(kTurnNs);
    if (absl::IsDeadlineExceeded(pending.status())) continue;
    if (!pending.ok()) {
      std::fprintf(stderr, "fastdecode: %s\n", std::string(pending.status().message()).c_str());
      continue;
    }
    if ((*pending)->proposal().shape != kEchoShape) {
      (*pending)->Refuse("this is no worker but `fastdecode latency fabric`");
      continue;
    }
    const std::string who = (*pending)->peer_name();
    absl::StatusOr<std::unique_ptr<HomeLink>> link = (*pending)->Accept(LinkAcceptance(), -1);
    if (!link.ok()) {
      std::fprintf(stderr, "fastdecode: %s: %s\n", who.c_str(), std::string(link.status().message()).c_str());
      continue;
    }
    monitor.Add(link->get());
    std::atomic<bool> stop{false};
    PinnedThread far("far", cores[0],
                     [&] { EchoHops(link->get(), flags.touch || endpoint->kind == Endpoint::Kind::kUnix, &stop); });
    while (!(*link)->lost() && InterruptGuard::Signal() == 0) std::this_thread::sleep_for(kPause);
    stop.store(true, std::memory_order_relaxed);
    far.Join();
    monitor.Remove(link->get());
    std::fprintf(stderr, "fastdecode: %s: %s\n", who.c_str(), (*link)->lost_cause().c_str());
  }
}

// ---- The near end

int RoundsFor(const FabricFlags& flags, size_t bytes) {
  if (flags.rounds > 0) return flags.rounds;
  return bytes <= 64 << 10 ? 10'000 : bytes <= 1 << 20 ? 1000 : 300;
}

Row Measure(EngineLink* link, const FabricFlags& flags, const char* shape, const EchoPoint& point, bool touch) {
  const int rounds = RoundsFor(flags, point.bytes);
  std::vector<uint64_t> trips = MeasureEcho(link, point, std::max(10, rounds / 10), rounds, touch);
  std::sort(trips.begin(), trips.end());
  Row row;
  row.shape = shape;
  row.point = point;
  // Perftest's latency is half of a round trip that is the same both ways; a hop is waited for to its end.
  const bool half = std::string(shape) == "one-way";
  for (const uint64_t ns : trips) row.us.push_back(static_cast<double>(ns) * (half ? 0.5e-3 : 1e-3));
  const double bytes = static_cast<double>(half ? point.bytes : point.bytes + point.reply_bytes);
  row.gb_per_s = row.median() > 0 ? bytes / row.median() * 1e-3 : 0;
  return row;
}

// Microseconds a segment, by windows.
Row MeasureBulkRow(EngineLink* link, const FabricFlags& flags, size_t bytes, bool touch) {
  const int windows = std::max(10, RoundsFor(flags, bytes) / kBulkWindow);
  std::vector<uint64_t> times = MeasureBulk(link, bytes, windows, touch);
  std::sort(times.begin(), times.end());
  Row row;
  row.shape = "bulk";
  row.point = {bytes, 0};
  for (const uint64_t ns : times) row.us.push_back(static_cast<double>(ns) * 1e-3 / kBulkWindow);
  row.gb_per_s = row.median() > 0 ? static_cast<double>(bytes) / row.median() * 1e-3 : 0;
  return row;
}

// q, k and v of a model whose four query heads share a KV head go out, o comes back.
size_t HopReplyBytes(size_t bytes) { return bytes * 2 / 3 / 8 * 8; }

std::vector<Row> MeasureAll(EngineLink* link, const FabricFlags& flags, bool touch) {
  std::vector<Row> rows;
  for (size_t bytes = flags.bytes_min; bytes <= flags.bytes_max; bytes *= 2) {
    rows.push_back(Measure(link, flags, "one-way", {bytes, bytes}, touch));
    rows.push_back(Measure(link, flags, "hop", {bytes, HopReplyBytes(bytes)}, touch));
  }
  // Behind all hops: a bulk stream leaves other things in the caches.
  for (size_t bytes = flags.bytes_min; bytes <= std::min(flags.bytes_max, kBulkSegmentBytesMax); bytes *= 2) {
    rows.push_back(MeasureBulkRow(link, flags, bytes, touch));
  }
  return rows;
}

std::string Text(const std::vector<Row>& rows, const std::string& peer, bool touch) {
  std::string text = absl::StrFormat(
      "%s; payload %s\none-way: half of a round trip with as much back. hop: the whole, two thirds back.\n"
      "bulk: a segment of a stream, by windows of %d\n",
      peer, touch ? "written and read within the time" : "not touched by the CPU", kBulkWindow);
  text += absl::StrFormat("%-8s %10s %10s %8s %9s %9s %9s %9s %9s %9s %9s\n", "shape", "#bytes", "#back", "#rounds",
                          "min[us]", "p50[us]", "p90[us]", "p99[us]", "p99.9[us]", "max[us]", "GB/s");
  for (const Row& row : rows) {
    text += absl::StrFormat("%-8s %10d %10d %8d %9.2f", row.shape, row.point.bytes, row.point.reply_bytes,
                            row.us.size(), row.us.front());
    for (const double share : {0.5, 0.9, 0.99, 0.999}) {
      const std::optional<double> us = row.Percentile(share);
      text += us ? absl::StrFormat(" %9.2f", *us) : absl::StrFormat(" %9s", "-");
    }
    text += absl::StrFormat(" %9.2f %9.3f\n", row.us.back(), row.gb_per_s);
  }
  return text;
}

std::string RowsJson(const std::vector<Row>& rows, const std::string& peer, bool touch) {
  nlohmann::json out = {{"peer", peer}, {"touch", touch}, {"rows", nlohmann::json::array()}};
  for (const Row& row : rows) {
    const auto percentile = [&row](double share) {
      const std::optional<double> us = row.Percentile(share);
      return us ? nlohmann::json(*us) : nlohmann::json();
    };
    out["rows"].push_back({{"shape", row.shape},
                           {"bytes", row.point.bytes},
                           {"reply_bytes", row.point.reply_bytes},
                           {"rounds", row.us.size()},
                           {"min_us", row.us.front()},
                           {"p50_us", percentile(0.5)},
                           {"p90_us", percentile(0.9)},
                           {"p99_us", percentile(0.99)},
                           {"p999_us", percentile(0.999)},
                           {"max_us", row.us.back()},
                           {"gb_per_s", row.gb_per_s}});
  }
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// What perftest measures first, the other shapes behind it under their names.
std::string Perftest(const std::vector<Row>& rows) {
  std::vector<PerftestRow> out;
  for (const std::string shape : {"one-way", "hop", "bulk"}) {
    for (const Row& row : rows) {
      if (row.shape != shape) continue;
      std::vector<uint64_t> ns;
      for (const double us : row.us) ns.push_back(static_cast<uint64_t>(std::llround(us * 1e3)));
      out.push_back({shape, row.point.bytes, Distribution(std::move(ns))});
    }
  }
  return PerftestText(out);
}

std::string Shown(const FabricFlags& flags, const std::vector<Row>& rows, const std::string& peer, bool touch) {
  if (flags.json || flags.format == "json") return RowsJson(rows, peer, touch);
  if (flags.format == "perftest") return Perftest(rows);
  return Text(rows, peer, touch);
}

void Report(EngineLink* link, const FabricFlags& flags, int core, const std::string& peer, bool touch) {
  PinCallingThread("near", core);
  const std::vector<Row> rows = MeasureAll(link, flags, touch);
  WriteOut(Shown(flags, rows, peer, touch));
}

void MeasureLocal(const FabricFlags& flags) {
  const FabricCores cores(flags.cores, 2);
  absl::StatusOr<LocalLink> link = MakeLocalLink(EchoLinkSize(flags.bytes_max), -1, -1, 1);
  ThrowUnlessOk(link.status());
  std::atomic<bool> stop{false};
  PinnedThread far("far", cores[1], [&] { EchoHops(link->home.get(), true, &stop); });
  const struct StopAtEnd {
    std::atomic<bool>* stop;
    ~StopAtEnd() { stop->store(true, std::memory_order_relaxed); }
  } stop_at_end{&stop};
  Report(link->engine.get(), flags, cores[0], "two threads of this process, shared memory", true);
}

void MeasurePeer(const FabricFlags& flags, const Endpoint& endpoint) {
  const FabricCores cores(flags.cores, 1);
  LinkProposal proposal;
  proposal.size = EchoLinkSize(flags.bytes_max);
  proposal.epoch = 1;
  proposal.shape = kEchoShape;
  absl::StatusOr<ConnectResult> connected = ConnectTo(endpoint, flags.fabric, proposal, -1, kConnectTimeoutNs);
  ThrowUnlessOk(connected.status());
  LinkMonitor monitor;
  monitor.Add(connected->link.get());
  const bool shared_memory = endpoint.kind == Endpoint::Kind::kUnix;
  Report(connected->link.get(), flags, cores[0], connected->link->peer_name() + ", " + connected->link->Describe(),
         flags.touch || shared_memory);
  monitor.Remove(connected->link.get());
}

void LatencyFabric(const FabricFlags& flags) {
  if (flags.bytes_min > flags.bytes_max) {
    throw Error(FD_INVALID_ARGUMENT, "--bytes-min: " + std::to_string(flags.bytes_min) + " is more than --bytes-max " +
                                         std::to_string(flags.bytes_max));
  }
  TickClock::Get();
  if (flags.fabric.gpu >= 0 && flags.touch) {
    throw Error(FD_INVALID_ARGUMENT, "--touch: the CPU cannot touch what --gpu puts into a GPU's memory");
  }
  if (flags.fabric.gpu >= 0 && !flags.listen.empty()) {
    throw Error(FD_INVALID_ARGUMENT, "--gpu: is for the near end, and --listen is the far one");
  }
  if (!flags.listen.empty()) return Serve(flags);
  const absl::StatusOr<Endpoint> endpoint = ParseEndpoint("--peer", flags.peer, EndpointUse::kPeer);
  ThrowUnlessOk(endpoint.status());
  if (flags.fabric.gpu >= 0 && endpoint->kind != Endpoint::Kind::kFabric) {
    throw Error(FD_INVALID_ARGUMENT, "--gpu: only links to HOST:PORT can have their payload in a GPU's memory");
  }
  if (endpoint->kind == Endpoint::Kind::kGpu) throw Error(FD_INVALID_ARGUMENT, "--peer: there is no link to 'gpu'");
  if (endpoint->kind == Endpoint::Kind::kLocal) return MeasureLocal(flags);
  MeasurePeer(flags, *endpoint);
}

}  // namespace

void AddLatencyFabric(CLI::App* latency) {
  auto flags = std::make_shared<FabricFlags>();
  CLI::App* command = latency->add_subcommand(
      "fabric", "Round trips on a bare link by size: between two threads, or to a second `latency fabric --listen`");
  CLI::Option* listen =
      command->add_option("--listen", flags->listen, "be the far end: unix:PATH or HOST:PORT")->type_name("ENDPOINT");
  command->add_option("--peer", flags->peer, "the far end: local (two threads here), unix:PATH or HOST:PORT")
      ->type_name("ENDPOINT")
      ->capture_default_str()
      ->excludes(listen);
  command->add_option("--bytes-min", flags->bytes_min, "smallest payload")
      ->transform(Number(kBytesMin, kBytesMax))
      ->excludes(listen)
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--bytes-max", flags->bytes_max, "largest payload; sizes double from the smallest")
      ->transform(Number(kBytesMin, kBytesMax))
      ->excludes(listen)
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--rounds", flags->rounds, "round trips a size and shape (0: 10000, fewer above 64 KiB)")
      ->transform(Number(0, 100'000'000))
      ->excludes(listen)
      ->type_name("N")
      ->capture_default_str();
  command
      ->add_option("--cores", flags->cores,
                   "cores of this end's thread, and of the far one with local (default: the last ones that nobody of "
                   "FastDecode has)")
      ->type_name("LIST");
  command->add_flag("--touch", flags->touch,
                    "write and read the payload within the time, as S and R do (always over shared memory)");
  CLI::Option* format =
      command
          ->add_option("--format", flags->format, "text, json (one object), or perftest (the columns of ib_write_lat)")
          ->check(CLI::IsMember({"text", "json", "perftest"}))
          ->excludes(listen)
          ->type_name("HOW")
          ->capture_default_str();
  command->add_flag("--json", flags->json, "the same as --format json")->excludes(format)->excludes(listen);
  FabricOptions& fabric = flags->fabric;
  command->add_option("--secret-file", fabric.secret_file, "what both hosts know; needed for HOST:PORT")
      ->type_name("FILE");
  command->add_option("--rdma-device", fabric.device, "RDMA device (default: the active one nearest to this thread)")
      ->type_name("NAME");
  command->add_option("--rdma-port", fabric.port, "its port (0: the first that is active)")
      ->transform(Number(0, 255))
      ->type_name("N");
  command->add_option("--gid-index", fabric.gid_index, "GID of the port (-1: look for RoCE v2 over IPv4)")
      ->transform(Number(-1, 1023))
      ->type_name("N");
  command->add_option("--rdma-mtu", fabric.mtu, "largest path MTU to agree on (0: the port's)")
      ->transform(Number(0, 4096))
      ->type_name("BYTES");
  command->add_option("--traffic-class", fabric.traffic_class, "of the packets")
      ->transform(Number(0, 255))
      ->type_name("N");
  command->add_option("--service-level", fabric.service_level, "of the packets")
      ->transform(Number(0, 15))
      ->type_name("N");
  command->add_option("--gpu", fabric.gpu, "payload in the memory of this GPU, for links to HOST:PORT (-1: the host's)")
      ->transform(Number(-1, 1023))
      ->type_name("N");
  command->callback([flags] { LatencyFabric(*flags); });
}

}  // namespace fastdecode
