#ifndef FASTDECODE_ENGINE_RPART_PAGE_COUNTS_H_
#define FASTDECODE_ENGINE_RPART_PAGE_COUNTS_H_

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"

namespace fastdecode {

// How many pages a sequence has: what its home takes, and the engine counts (decision 0003). Where there are open pages
// (int4), the tokens of the last page are in pieces of kOpenPieceTokens, which are pages, too, taken as tokens come.
// The full page takes another one when it is closed, and stays open besides until the next token comes. Numbers alone.
class PageCounts {
 public:
  explicit PageCounts(bool open_pages) : open_pages_(open_pages) {}
  explicit PageCounts(const AttentionShape& shape) : PageCounts(HasOpenPages(shape)) {}

  bool open_pages() const { return open_pages_; }
  // Pages of `tokens` tokens, without the open one.
  uint32_t Closed(uint32_t tokens) const { return (tokens + (open_pages_ ? 0 : kPageTokens - 1)) / kPageTokens; }
  // Pieces of their open page.
  uint32_t Pieces(uint32_t tokens) const {
    return open_pages_ && tokens > 0 ? (tokens - 1) % kPageTokens / kOpenPieceTokens + 1 : 0;
  }
  // The same of a sequence that was cut or forked there: what is behind a full page needs nothing of it open.
  uint32_t PiecesOfCut(uint32_t tokens) const { return tokens % kPageTokens == 0 ? 0 : Pieces(tokens); }
  // The same in a step, and after it, that appends tokens [first, end): layers that are still to come have the open
  // page as it was, unless that was full.
  uint32_t PiecesOfStep(uint32_t first, uint32_t end) const {
    return std::max(first % kPageTokens == 0 ? 0 : Pieces(first), Pieces(end));
  }
  uint32_t OfStep(uint32_t first, uint32_t end) const { return Closed(end) + PiecesOfStep(first, end); }
  // Of a sequence that is to have so many tokens, at most at any time.
  uint32_t Most(uint32_t tokens) const {
    if (!open_pages_ || tokens < kPageTokens) return Closed(tokens) + Pieces(tokens);
    return Closed(tokens) + kOpenPieces;
  }
  // The most tokens for whose Most so many pages do.
  uint64_t TokensIn(uint64_t pages) const {
    if (!open_pages_) return pages * kPageTokens;
    return pages < kOpenPieces ? pages * kOpenPieceTokens : (pages - kOpenPieces + 1) * kPageTokens - 1;
  }

 private:
  bool open_pages_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_PAGE_COUNTS_H_
