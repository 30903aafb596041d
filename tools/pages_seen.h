#ifndef FASTDECODE_TOOLS_PAGES_SEEN_H_
#define FASTDECODE_TOOLS_PAGES_SEEN_H_

#include <cstdint>
#include <fastdecode/fastdecode.hpp>
#include <map>
#include <string>

namespace fastdecode {

// What the homes say of their KV pages while requests run, for afterwards all are free: each home's fullest count.
// Thread: one. Must not outlive the engine.
class PagesSeen {
 public:
  explicit PagesSeen(const InferenceEngine& engine) : engine_(engine) {}

  // Takes what the homes said last, unless it did so within the last 20 ms. They count at most every 100 ms.
  void Look();
  // A line for each home that has said anything.
  std::string Text() const;

 private:
  struct Pages {
    unsigned long long all = 0, used = 0, free = 0, held = 0;
  };

  const InferenceEngine& engine_;
  std::map<int, Pages> fullest_;  // by home
  uint64_t looked_ns_ = 0;        // 0: never
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_PAGES_SEEN_H_
