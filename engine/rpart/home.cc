#include "engine/rpart/home.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

constexpr double kMiB = 1 << 20;

// Cut to what fits; always ends with a zero byte.
template <size_t kBytes>
void CopyText(const std::string& text, char (&out)[kBytes]) {
  const size_t bytes = std::min(text.size(), kBytes - 1);
  std::memcpy(out, text.data(), bytes);
  std::memset(out + bytes, 0, kBytes - bytes);
}

absl::Status ChooseIsa(Isa* isa) {
  const Isa best = DetectIsa();
  if (best == Isa::kNone) return absl::FailedPreconditionError("this CPU has no AVX2 with FMA and F16C");
  if (*isa == Isa::kNone) *isa = best;
  if (*isa <= best) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("isa %s: this CPU has %s at most", IsaName(*isa), IsaName(best)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Home>> Home::Create(HomeOptions options) {
  if (options.cores.empty()) return absl::InvalidArgumentError(absl::StrCat(options.name, ": no cores given"));
  if (absl::Status status = ChooseIsa(&options.isa); !status.ok()) return status;
  ArenaOptions memory;
  memory.bytes = options.kv_bytes;
  memory.node = options.node;
  // Unpinned teams touch their memory from the calling thread.
  std::copy_if(options.cores.begin(), options.cores.end(), std::back_inserter(memory.prefault_cores),
               [](int core) { return core >= 0; });
  absl::StatusOr<Arena> arena = Arena::Create(memory);
  if (!arena.ok()) return arena.status();
  TickClock::Get();  // calibrates, which takes 10 ms
  return std::unique_ptr<Home>(new Home(std::move(options), *std::move(arena)));
}

Home::Home(HomeOptions options, Arena arena) : options_(std::move(options)), arena_(std::move(arena)) {}

Home::~Home() { Detach(); }

absl::Status Home::CheckShape(const RPartShape& shape) const {
  if (absl::Status status = ValidateShape(shape); !status.ok()) return status;
  const size_t page_bytes = KvPool::PageBytesAllLayers(shape.attention(), static_cast<int>(shape.layers));
  if (page_bytes <= arena_.bytes()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s: %.4g MiB of KV memory hold not even one page: %d tokens of %d layers are %.4g MiB", options_.name,
      static_cast<double>(arena_.bytes()) / kMiB, kPageTokens, shape.layers, static_cast<double>(page_bytes) / kMiB));
}

HomeDescription Home::Describe(const RPartShape& shape) const {
  HomeDescription description;
  description.node = options_.node;
  description.threads = static_cast<uint32_t>(options_.cores.size());
  description.page_bytes = KvPool::PageBytesAllLayers(shape.attention(), static_cast<int>(shape.layers));
  description.pages = arena_.bytes() / description.page_bytes;
  CopyText(IsaName(options_.isa), description.isa);
  CopyText(arena_.Describe(), description.memory);
  return description;
}

absl::Status Home::Attach(const RPartShape& shape, std::unique_ptr<HomeLink> link) {
  if (serving()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: already serves the %s", options_.name, loop_->link().peer_name()));
  }
  Detach();
  if (absl::Status status = CheckShape(shape); !status.ok()) return status;
  if (absl::Status status = CheckLinkCarries(shape, link->size()); !status.ok()) return status;
  HomeLoopOptions loop_options;
  loop_options.name = options_.name;
  loop_options.node = options_.node;
  loop_options.cores = options_.cores;
  loop_options.poll = options_.poll;
  loop_options.park = options_.park;
  loop_options.isa = options_.isa;
  loop_options.sequences_max = options_.sequences_max;
  loop_options.logger = options_.logger;
  loop_options.kv_memory = {reinterpret_cast<std::byte*>(arena_.data()), arena_.bytes()};
  absl::StatusOr<std::unique_ptr<HomeLoop>> loop = HomeLoop::Create(loop_options, shape, std::move(link));
  if (!loop.ok()) return loop.status();
  loop_ = *std::move(loop);
  serving_.store(true, std::memory_order_release);
  leader_ = PinnedThread(options_.name, options_.cores[0], [this] {
    end_cause_ = loop_->Serve();
    // Release: who sees the home free sees the cause and that nothing is left of the peer.
    serving_.store(false, std::memory_order_release);
  });
  return absl::OkStatus();
}

std::string Home::Detach() {
  if (loop_ == nullptr) return "";
  loop_->link().MarkLost("the home was stopped");
  leader_.Join();
  if (options_.logger != nullptr) {
    options_.logger->Debug(
        absl::StrFormat("%s: no longer serves the %s: %s", options_.name, loop_->link().peer_name(), end_cause_));
  }
  loop_.reset();
  return end_cause_;
}

}  // namespace fastdecode
