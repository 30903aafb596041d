#include "numa/arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>

#include "numa/mapped_pages.h"
#include "numa/memory_limit.h"
#include "numa/topology.h"

namespace fastdecode {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;

Arena CreateOrDie(const ArenaOptions& options) {
  absl::StatusOr<Arena> arena = Arena::Create(options);
  EXPECT_TRUE(arena.ok()) << arena.status();
  return arena.ok() ? *std::move(arena) : Arena();
}

// How many bytes of this process are in memory, of all kinds.
size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * kSmallPageBytes;
}

TEST(ArenaTest, IsZeroedPresentAndOnItsNode) {
  const absl::StatusOr<Topology> topology = Topology::Discover();
  ASSERT_TRUE(topology.ok()) << topology.status();
  for (const NumaNode& node : topology->nodes) {
    if (!node.UsableAsHome()) continue;
    const size_t resident_before = ResidentBytes();
    const Arena arena = CreateOrDie({.bytes = 32 * kMiB + 5, .node = node.os_index, .prefault_cores = node.cores});
    ASSERT_NE(arena.data(), nullptr);
    EXPECT_GE(arena.bytes(), 32 * kMiB + 5);
    EXPECT_EQ(arena.bytes() % arena.page_bytes(), 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % arena.page_bytes(), 0u);
    if (arena.page_bytes() < kHugePageBytes || arena.Describe().find("reserved") == std::string::npos) {
      EXPECT_GE(ResidentBytes(), resident_before + 30 * kMiB);  // touched by Create
    }
    for (size_t i = 0; i < arena.bytes(); i += 1000) ASSERT_EQ(arena.data()[i], 0);
    EXPECT_NE(arena.placement(), ArenaPlacement::kAnywhere);
    EXPECT_THAT(arena.Describe(), HasSubstr("on node " + std::to_string(node.os_index)));
    std::cout << arena.Describe() << "\n";
  }
}

// Creating it does not look, which takes long in a process with much memory.
TEST(ArenaTest, HugePagesAreLookedForWhenSomebodyAsks) {
  const Arena arena = CreateOrDie({.bytes = 32 * kMiB});
  if (arena.page_bytes() > kSmallPageBytes) GTEST_SKIP() << "reserved pages stay as they are: " << arena.Describe();
  EXPECT_GE(arena.huge_share(), 0);
  EXPECT_LE(arena.huge_share(), 1);
  // Whatever they were, small ones take their place.
  ASSERT_EQ(madvise(arena.data(), arena.bytes(), MADV_NOHUGEPAGE), 0);
  ASSERT_EQ(madvise(arena.data(), arena.bytes(), MADV_DONTNEED), 0);
  for (size_t i = 0; i < arena.bytes(); i += kSmallPageBytes) arena.data()[i] = 1;
  EXPECT_EQ(arena.huge_share(), 0);
  EXPECT_EQ(arena.Describe(), arena.DescribePlace() + ", 4 KiB pages (0 % transparent huge)");
}

TEST(ArenaTest, SmallOnesTakeWholePages) {
  const Arena arena = CreateOrDie({.bytes = 1});
  EXPECT_EQ(arena.bytes(), kSmallPageBytes);
  EXPECT_EQ(arena.page_bytes(), kSmallPageBytes);
  EXPECT_EQ(arena.placement(), ArenaPlacement::kAnywhere);
  EXPECT_EQ(arena.fd(), -1);
}

TEST(ArenaTest, ASharedOneIsTheSameMemoryElsewhere) {
  for (const size_t bytes : {size_t{100}, 4 * kMiB}) {
    const Arena arena = CreateOrDie({.bytes = bytes, .shared = true});
    ASSERT_GE(arena.fd(), 0);
    const int peer_fd = dup(arena.fd());
    const absl::StatusOr<Arena> peer = Arena::Attach(peer_fd);
    close(peer_fd);
    ASSERT_TRUE(peer.ok()) << peer.status();
    EXPECT_EQ(peer->bytes(), arena.bytes());
    EXPECT_NE(peer->data(), arena.data());
    arena.data()[bytes - 1] = 42;
    EXPECT_EQ(peer->data()[bytes - 1], 42);
    EXPECT_NE(ftruncate(arena.fd(), 0), 0) << "must be sealed";
  }
}

TEST(ArenaTest, AttachRefusesWhatCouldShrink) {
  const int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  EXPECT_EQ(Arena::Attach(fd).status().code(), absl::StatusCode::kInvalidArgument);
  close(fd);
  EXPECT_EQ(Arena::Attach(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ArenaTest, TooMuchIsAnErrorThatNamesBytes) {
  const uint64_t bytes = MemoryLimit::Read().available_bytes + (uint64_t{1} << 40);
  const absl::StatusOr<Arena> arena = Arena::Create({.bytes = bytes});
  EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr(std::to_string(bytes) + " bytes"));
  EXPECT_THAT(std::string(arena.status().message()), HasSubstr("available"));
}

TEST(ArenaTest, BadOptionsAreErrors) {
  EXPECT_EQ(Arena::Create({.bytes = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Arena::Create({.bytes = 4096, .node = 5000}).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::StatusOr<Arena> arena = Arena::Create({.bytes = 4096, .node = 900});
  // A kernel that refuses mbind altogether cannot know.
  if (!arena.ok()) {
    EXPECT_EQ(arena.status().code(), absl::StatusCode::kInvalidArgument) << arena.status();
  }
}

// As Docker does to whoever lacks CAP_SYS_NICE. A filter is the thread's that sets it.
TEST(ArenaTest, AKernelThatRefusesToPlaceIsNoError) {
  std::thread([] {
    sock_filter refuse[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_move_pages, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program = {.len = std::size(refuse), .filter = refuse};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      GTEST_SKIP() << "no filters here: " << std::strerror(errno);
    }
    const Arena arena = CreateOrDie({.bytes = kSmallPageBytes, .node = 0});
    EXPECT_EQ(arena.placement(), ArenaPlacement::kRefused);
    EXPECT_THAT(arena.DescribePlace(), HasSubstr("on node 0 (unverified)"));
  }).join();
}

TEST(ArenaTest, MovingAndDestroyingGiveTheMemoryBack) {
  Arena first = CreateOrDie({.bytes = 32 * kMiB});
  uint8_t* const data = first.data();
  Arena second = std::move(first);
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(second.data(), data);
  second = Arena();
  unsigned char present;
  EXPECT_NE(mincore(data, kSmallPageBytes, &present), 0) << "still mapped";
}

TEST(ArenaTest, ManyPrefaultThreadsCoverEveryPage) {
  // More threads than huge pages, and parts that are not equal.
  const Arena arena = CreateOrDie({.bytes = 6 * kMiB, .prefault_cores = {-1, -1, -1, -1, -1}});
  std::vector<unsigned char> present(arena.bytes() / kSmallPageBytes);
  ASSERT_EQ(mincore(arena.data(), arena.bytes(), present.data()), 0);
  for (size_t i = 0; i < present.size(); ++i) ASSERT_EQ(present[i] & 1, 1) << "page " << i;
}

TEST(MappedPagesTest, SampleFindsPagesOnAnotherNode) {
  const Arena arena = CreateOrDie({.bytes = 4 * kMiB});
  const absl::StatusOr<PageSample> sample = SamplePages(arena.data(), arena.bytes(), 1000);
  if (!sample.ok()) GTEST_SKIP() << sample.status();
  EXPECT_EQ(sample->on_node, 0u);
  EXPECT_EQ(sample->asked, arena.bytes() / kSmallPageBytes);
  EXPECT_GE(sample->other_node, 0);
}

}  // namespace
}  // namespace fastdecode
