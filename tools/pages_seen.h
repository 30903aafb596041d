#ifndef FASTDECODE_TOOLS_PAGES_SEEN_H_
#define FASTDECODE_TOOLS_PAGES_SEEN_H_

#include <cstdint>
#include <fastdecode/fastdecode.hpp>
#include <map>
#include <string>

namespace fastdecode {

// What the homes say of their KV pages while requests run: afterwards all are free. Of each home the look is kept that
// found most pages used. Thread: one. Must not outlive the engine.
class PagesSeen {
 public:
  explicit PagesSeen(const InferenceEngine& engine) : engine_(engine) {}

  // Asks the homes, unless it did so within the last second.
  void Look();
  // A line for each home that has answered.
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
