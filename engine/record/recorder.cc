#include "engine/record/recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "numa/clock.h"
#include "numa/mapped_pages.h"

namespace fastdecode {

namespace {

// Of the events' layout and meaning.
constexpr uint64_t kLayoutVersion = 2;

struct RingSpec {
  const char* name;
  size_t capacity;
};
// A second or so of a small model's steps, many of a large one's.
constexpr RingSpec kRingSpecs[Recorder::kRings] = {{"pipeline", 1 << 17}, {"desk", 1 << 15}};

size_t RoundUpToPage(size_t bytes) { return (bytes + kSmallPageBytes - 1) / kSmallPageBytes * kSmallPageBytes; }

size_t AllBytes() {
  size_t bytes = 0;
  for (const RingSpec& spec : kRingSpecs) bytes += RoundUpToPage(EventRing::Bytes(spec.capacity));
  return bytes;
}

std::string SystemErrorText(const char* what) { return absl::StrCat(what, ": ", std::strerror(errno)); }

absl::Status SystemError(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat("recording: ", SystemErrorText(what)));
}

}  // namespace

// What readers of other processes map, or why there is none.
Recorder::Memory Recorder::OpenMemory() {
  const auto not_shared = [](const char* what) { return Memory{{}, {}, SystemErrorText(what)}; };
  FileDescriptor whole(memfd_create("fastdecode-record", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!whole.valid()) return not_shared("memfd_create");
  if (ftruncate(whole.get(), static_cast<off_t>(AllBytes())) != 0) return not_shared("ftruncate of a memfd");
  // A reader maps it: it must never be cut under it.
  if (fcntl(whole.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return not_shared("sealing a memfd (fcntl)");
  FileDescriptor read_only(open(absl::StrCat("/proc/self/fd/", whole.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!read_only.valid()) return not_shared("opening a memfd for reading, by its name in /proc/self/fd");
  return {std::move(whole), std::move(read_only), ""};
}

absl::StatusOr<std::unique_ptr<Recorder>> Recorder::Create() {
  Memory memory = OpenMemory();
  const int flags = memory.whole.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* const base = mmap(nullptr, AllBytes(), PROT_READ | PROT_WRITE, flags, memory.whole.get(), 0);
  if (base == MAP_FAILED) return SystemError("mmap");
  return std::unique_ptr<Recorder>(new Recorder(std::move(memory), static_cast<std::byte*>(base)));
}

Recorder::Recorder(Memory memory, std::byte* base) : memory_(std::move(memory)), base_(base) {
  size_t offset = 0;
  for (const RingSpec& spec : kRingSpecs) {
    rings_.emplace_back(base + offset, spec.capacity);
    offset += RoundUpToPage(EventRing::Bytes(spec.capacity));
  }
}

Recorder::~Recorder() { munmap(base_, AllBytes()); }

void Recorder::AddReader() {
  std::lock_guard lock(mutex_);
  // Here, so that no writer has to wait for the kernel to find it a page.
  for (size_t offset = 0; !touched_ && offset < AllBytes(); offset += kSmallPageBytes) {
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(base_ + offset)).fetch_add(0, std::memory_order_relaxed);
  }
  touched_ = true;
  for (const EventRing& ring : rings_) ring.head->readers.fetch_add(1, std::memory_order_release);
}

void Recorder::RemoveReader() {
  std::lock_guard lock(mutex_);
  for (const EventRing& ring : rings_) ring.head->readers.fetch_sub(1, std::memory_order_release);
}

nlohmann::json Recorder::Layout() const {
  nlohmann::json layout = {{"version", kLayoutVersion}, {"event_bytes", EventRing::kEventBytes}};
  for (int i = 0; i < kRings; ++i) {
    const size_t offset = static_cast<size_t>(reinterpret_cast<std::byte*>(rings_[i].head) - base_);
    layout["rings"].push_back({{"name", kRingSpecs[i].name}, {"offset", offset}, {"capacity", kRingSpecs[i].capacity}});
  }
  return layout;
}

double MeasureEventNs() {
  constexpr size_t kCapacity = 4096;
  constexpr int kRounds = 5;
  struct alignas(kCacheLineBytes) Line {
    std::byte bytes[kCacheLineBytes];
  };
  std::vector<Line> memory(EventRing::Bytes(kCapacity) / sizeof(Line) + 1);
  EventWriter writer(EventRing(memory[0].bytes, kCapacity));
  uint64_t least_ns = UINT64_MAX;  // the first round finds the memory cold, any may be interrupted
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t start_ns = NowNs();
    for (size_t i = 0; i < kCapacity; ++i) {
      RecordEvent event = {};
      event.start_ns = i;
      event.end_ns = NowNs();
      writer.Write(event);
    }
    least_ns = std::min(least_ns, NowNs() - start_ns);
  }
  return static_cast<double>(least_ns) / kCapacity;
}

absl::StatusOr<std::unique_ptr<MappedRings>> MappedRings::Map(const nlohmann::json& layout, int fd) {
  const auto number = [](const nlohmann::json& object, const char* name) -> uint64_t {
    const auto found = object.is_object() ? object.find(name) : object.end();
    return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
  };
  if (number(layout, "version") != kLayoutVersion || number(layout, "event_bytes") != EventRing::kEventBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "its recording has version %d with %d bytes an event, this program reads version %d with %d",
        number(layout, "version"), number(layout, "event_bytes"), kLayoutVersion, EventRing::kEventBytes));
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0) return SystemError("fstat");
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("its recording could be cut while it is read");
  }
  const size_t bytes = static_cast<size_t>(info.st_size);
  const auto found = layout.find("rings");
  if (found == layout.end() || !found->is_array() || found->empty()) {
    return absl::InvalidArgumentError("its recording names no rings");
  }
  for (const nlohmann::json& ring : *found) {
    const uint64_t offset = number(ring, "offset"), capacity = number(ring, "capacity");
    const bool fits = std::has_single_bit(capacity) && capacity <= bytes / EventRing::kEventBytes && offset <= bytes &&
                      offset % kSmallPageBytes == 0 && EventRing::Bytes(capacity) <= bytes - offset;
    if (!fits) {
      return absl::InvalidArgumentError(absl::StrFormat("its recording: a ring of %d events at %d does not fit %d bytes",
                                                        capacity, offset, bytes));
    }
  }
  void* const base = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return SystemError("mmap");
  std::unique_ptr<MappedRings> mapped(new MappedRings(static_cast<std::byte*>(base), bytes));
  for (const nlohmann::json& ring : *found) {
    mapped->rings_.emplace_back(mapped->base_ + number(ring, "offset"), number(ring, "capacity"));
  }
  return mapped;
}

MappedRings::~MappedRings() { munmap(base_, bytes_); }

std::vector<EventReader> MappedRings::Readers() const {
  std::vector<EventReader> readers;
  for (const EventRing& ring : rings_) readers.emplace_back(ring);
  return readers;
}

}  // namespace fastdecode
