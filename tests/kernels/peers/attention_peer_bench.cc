// attention_peer_bench f16|bf16|q8_0|q4_0 token|head [CONTEXT [GIB [REPETITIONS [THREADS]]]]
// Decode attention of a peer over as much KV as `fastdecode bench attention` reads, one operator a sequence, each
// repetition between two read tests of the same memory. Rows of KV lie as the peer's own programs keep them (token: all
// heads of a token together) or as suits it best (head: all tokens of a head). Prints how far it is from attention in
// double over the numbers that were stored.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "numa/arena.h"
#include "numa/clock.h"
#include "numa/pinned_thread.h"
#include "numa/ticket_team.h"
#include "tests/kernels/peers/peer_api.h"
#include "tools/bench/bracketed_runs.h"
#include "tools/bench/memory_pass.h"

namespace fastdecode {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr double kRmsErrorMax = 0.25;  // of q4_0 it is .12
const float kScale = 1 / std::sqrt(static_cast<float>(kHeadDim));

struct Flags {
  ggml_type type = GGML_TYPE_F16;
  bool by_token = false;
  int64_t context = 4096;
  double gib = 4.5;
  int repetitions = 7;
  int threads = 2;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "attention_peer_bench: %s\n", why.c_str());
  std::exit(1);
}

Flags ParseFlags(int argc, char** argv) {
  if (argc < 3 || argc > 7) Fail("usage: f16|bf16|q8_0|q4_0 token|head [CONTEXT [GIB [REPETITIONS [THREADS]]]]");
  Flags flags;
  const std::string type = argv[1], layout = argv[2];
  const std::pair<const char*, ggml_type> types[] = {
      {"f16", GGML_TYPE_F16}, {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0}, {"q4_0", GGML_TYPE_Q4_0}};
  const auto* const known = std::find_if(std::begin(types), std::end(types), [&](auto& t) { return type == t.first; });
  if (known == std::end(types)) Fail("no such type: " + type);
  flags.type = known->second;
  if (layout != "token" && layout != "head") Fail("no such layout: " + layout);
  flags.by_token = layout == "token";
  if (argc > 3) flags.context = std::atoll(argv[3]);
  if (argc > 4) flags.gib = std::atof(argv[4]);
  if (argc > 5) flags.repetitions = std::atoi(argv[5]);
  if (argc > 6) flags.threads = std::atoi(argv[6]);
  if (flags.context <= 0 || flags.gib <= 0 || flags.repetitions <= 0 || flags.threads <= 0)
    Fail("numbers above 0, please");
  return flags;
}

// Which f16 holds exactly.
std::vector<float> RandomHalves(size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = ggml_fp16_to_fp32(ggml_fp32_to_fp16(normal(random)));
  return values;
}

// K or V of one sequence: [head][token][dim].
struct Rows {
  std::vector<float> values;

  const float* At(int64_t head, int64_t token, int64_t context) const {
    return &values[static_cast<size_t>((head * context + token) * kHeadDim)];
  }
  void Store(const Flags& flags, std::byte* to) const {
    const size_t row_bytes = ggml_row_size(flags.type, kHeadDim);
    for (int64_t head = 0; head < kKvHeads; ++head) {
      for (int64_t token = 0; token < flags.context; ++token) {
        const int64_t place = flags.by_token ? token * kKvHeads + head : head * flags.context + token;
        Quantize(flags.type, At(head, token, flags.context), to + static_cast<size_t>(place) * row_bytes, 1, kHeadDim);
      }
    }
  }
};

std::vector<double> Reference(const Flags& flags, const std::vector<float>& q, const Rows& k, const Rows& v) {
  std::vector<double> out(static_cast<size_t>(kHeads * kHeadDim));
  for (int64_t head = 0; head < kHeads; ++head) {
    const int64_t kv_head = head / (kHeads / kKvHeads);
    const float* const query = &q[static_cast<size_t>(head * kHeadDim)];
    std::vector<double> scores(static_cast<size_t>(flags.context));
    for (int64_t t = 0; t < flags.context; ++t) {
      const float* const key = k.At(kv_head, t, flags.context);
      double dot = 0;
      for (int64_t d = 0; d < kHeadDim; ++d) dot += double{query[d]} * key[d];
      scores[static_cast<size_t>(t)] = dot * kScale;
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    double* const o = &out[static_cast<size_t>(head * kHeadDim)];
    for (int64_t t = 0; t < flags.context; ++t) {
      const double p = std::exp(scores[static_cast<size_t>(t)] - largest);
      sum += p;
      for (int64_t d = 0; d < kHeadDim; ++d) o[d] += p * v.At(kv_head, t, flags.context)[d];
    }
    for (int64_t d = 0; d < kHeadDim; ++d) o[d] /= sum;
  }
  return out;
}

// All sequences' attention as one graph of the peer's. Owns: the graph, q, outputs and the mask, not the KV.
class PeerAttention {
 public:
  PeerAttention(const Flags& flags, const std::vector<float>& q, std::byte* kv, int64_t sequences)
      : flags_(flags),
        q_(q),
        mask_(static_cast<size_t>(flags.context * kMaskRows), ggml_fp32_to_fp16(0)),
        out_(static_cast<size_t>(sequences * kHeads * kHeadDim)) {
    const size_t nodes = 3 * static_cast<size_t>(sequences) + 16;  // views count, too
    ggml_init_params params = {};
    params.mem_size = 2 * nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, false);
    params.no_alloc = true;
    context_ = ggml_init(params);
    graph_ = ggml_new_graph_custom(context_, nodes, false);
    ggml_tensor* const query = ggml_new_tensor_3d(context_, GGML_TYPE_F32, kHeadDim, 1, kHeads);
    query->data = q_.data();
    ggml_tensor* const mask = ggml_new_tensor_2d(context_, GGML_TYPE_F16, flags.context, kMaskRows);
    mask->data = mask_.data();
    const size_t bytes = SideBytes(flags);
    for (int64_t s = 0; s < sequences; ++s) {
      ggml_tensor* const k = Side(kv + static_cast<size_t>(2 * s) * bytes);
      ggml_tensor* const v = Side(kv + static_cast<size_t>(2 * s + 1) * bytes);
      ggml_tensor* const o = ggml_flash_attn_ext(context_, query, k, v, mask, kScale, 0, 0);
      o->data = &out_[static_cast<size_t>(s * kHeads * kHeadDim)];
      ggml_build_forward_expand(graph_, o);
    }
    plan_ = Plan(graph_, flags.threads);
    work_.resize(plan_.work_size);
    plan_.work_data = work_.data();
  }

  // K, or V, of a sequence.
  static size_t SideBytes(const Flags& flags) {
    return ggml_row_size(flags.type, kHeadDim) * static_cast<size_t>(kKvHeads * flags.context);
  }

  uint64_t Run() {
    const uint64_t start_ns = NowNs();
    if (ggml_graph_compute(graph_, &plan_) != GGML_STATUS_SUCCESS) Fail("the peer failed");
    return NowNs() - start_ns;
  }

  // Of a sequence, relative to the size of what was wanted.
  double RmsError(int64_t sequence, const std::vector<double>& wanted) const {
    double errors = 0, squares = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double error = out_[static_cast<size_t>(sequence) * wanted.size() + i] - wanted[i];
      errors += error * error;
      squares += wanted[i] * wanted[i];
    }
    return std::sqrt(errors / squares);
  }

 private:
  ggml_tensor* Side(std::byte* data) {
    if (!flags_.by_token) {
      ggml_tensor* const side = ggml_new_tensor_3d(context_, flags_.type, kHeadDim, flags_.context, kKvHeads);
      side->data = data;
      return side;
    }
    ggml_tensor* const all = ggml_new_tensor_2d(context_, flags_.type, kHeadDim * kKvHeads, flags_.context);
    all->data = data;
    const size_t row_bytes = ggml_row_size(flags_.type, kHeadDim);
    return ggml_view_3d(context_, all, kHeadDim, flags_.context, kKvHeads, row_bytes * kKvHeads, row_bytes, 0);
  }

  const Flags flags_;
  std::vector<float> q_;
  std::vector<ggml_fp16_t> mask_;
  std::vector<float> out_;
  std::vector<uint8_t> work_;
  ggml_context* context_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_cplan plan_ = {};
};

// Threads of their own, on cores 0, 1, ...: the peer pins and makes its threads from this one as it likes.
template <class Use>
void OnReaders(int threads, Use use) {
  std::vector<int> cores(static_cast<size_t>(threads));
  std::iota(cores.begin(), cores.end(), 0);
  PinnedThread("read", cores[0], [&] {
    TicketTeam team("read", cores, PollMode::kSpin);
    use(&team);
  }).Join();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Measure(const Flags& flags) {
  ggml_free(ggml_init({}));  // makes the tables that conversions read
  const size_t sequence_bytes = 2 * PeerAttention::SideBytes(flags);
  const auto sequences = static_cast<int64_t>(flags.gib * 0x1p30 / static_cast<double>(sequence_bytes));
  if (sequences == 0) Fail("not even one sequence");
  const size_t kv_bytes = static_cast<size_t>(sequences) * sequence_bytes;
  absl::StatusOr<Arena> memory = Arena::Create({kv_bytes});
  if (!memory.ok()) Fail(std::string(memory.status().message()));
  std::byte* const kv = reinterpret_cast<std::byte*>(memory->data());

  std::mt19937_64 random(1);
  const std::vector<float> q = RandomHalves(kHeads * kHeadDim, random);
  const Rows k{RandomHalves(static_cast<size_t>(kKvHeads * flags.context * kHeadDim), random)};
  const Rows v{RandomHalves(static_cast<size_t>(kKvHeads * flags.context * kHeadDim), random)};
  k.Store(flags, kv);
  v.Store(flags, kv + sequence_bytes / 2);
  for (int64_t s = 1; s < sequences; ++s) std::memcpy(kv + static_cast<size_t>(s) * sequence_bytes, kv, sequence_bytes);

  PeerAttention peer(flags, q, kv, sequences);
  MemoryPass read;
  read.data = kv;
  read.bytes = kv_bytes;
  OnReaders(flags.threads, [&](TicketTeam* team) { read.streams = FasterStreams(read, team); });
  peer.Run();

  std::vector<double> rates, reads, ratios;
  const absl::StatusOr<int> discarded = RunBracketed(
      flags.repetitions,
      [&] {
        uint64_t ns = 0;
        OnReaders(flags.threads, [&](TicketTeam* team) { ns = read.Run(team); });
        return TestRates{static_cast<double>(read.BytesMoved(flags.threads)) / static_cast<double>(ns)};
      },
      [&]() -> absl::StatusOr<uint64_t> { return peer.Run(); },
      [&](uint64_t ns, const TestRates& around) {
        rates.push_back(static_cast<double>(kv_bytes) / static_cast<double>(ns));
        reads.push_back(around[0]);
        ratios.push_back(rates.back() / around[0]);
      });
  if (ratios.empty()) Fail(std::string(TooBusy(*discarded).message()));
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  const std::vector<double> wanted = Reference(flags, q, k, v);
  const double error = std::max(peer.RmsError(0, wanted), peer.RmsError(sequences - 1, wanted));
  if (!(error < kRmsErrorMax)) Fail("the peer computes something else: rms error " + std::to_string(error));
  std::printf(
      "%s %s %s: %lld sequences of %lld tokens, %s\n  KV %.2f GB/s, read %.2f GB/s, ratio %.3f [%.3f..%.3f], %.0f "
      "query rows/s, %zu repetitions, %d discarded; rms error %.1e\n",
      kPeer, ggml_type_name(flags.type), flags.by_token ? "token-major" : "head-major",
      static_cast<long long>(sequences), static_cast<long long>(flags.context), memory->Describe().c_str(),
      Median(rates), Median(reads), Median(ratios), *least, *most,
      static_cast<double>(sequences) * Median(rates) * 1e9 / static_cast<double>(kv_bytes), ratios.size(), *discarded,
      error);
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) { fastdecode::Measure(fastdecode::ParseFlags(argc, argv)); }
