// FAST PATH (docs/FAST_PATH.md)
#include <algorithm>
#include <cstring>

#include "engine/rpart/hop_work.h"

namespace fastdecode {

// Those of a chain's rows that lie in this block, from the first row's page on. False if there are none.
bool HopWork::FindOpenPages(const Chain& chain, uint32_t block, int thread, OpenPage* open) const {
  if (!has_open_pages() || chain.sharers > 0) return false;
  const uint32_t of_rows = chain.first_position / kPageTokens;
  const uint32_t first = (chain.first_block + block) * kBlockPages;
  const uint32_t begin = std::max(of_rows, first);
  const uint32_t end = std::min((chain.first_position + chain.rows - 1) / kPageTokens + 1, first + kBlockPages);
  const StepEntry& entry = entries[chain.entry];
  for (uint32_t page = begin; page < end; ++page) {
    OpenPage& to = open[page - of_rows];
    if (!entry.is_chunk()) {
      to = OpenPageOf(entry);
    } else {
      to = OpenHead(thread, page - of_rows);
      FillOpenHead(entry, page, chain.first_head, to);
    }
  }
  return begin < end;
}

// One KV head in the thread's own memory.
OpenPage HopWork::OpenHead(int thread, size_t index) const {
  const size_t piece_bytes = OpenPieceBytes(attention);
  OpenPage open;
  open.head_stride_bytes = 0;
  for (size_t i = 0; i < kOpenPieces; ++i) open.pieces[i] = workspace->open_head(thread, index) + i * piece_bytes;
  return open;
}

// A page of a chunk as far as it is known: what was stored before, and the chunk's rows.
void HopWork::FillOpenHead(const StepEntry& entry, uint32_t page, int kv_head, const OpenPage& to) const {
  const uint32_t first = page * kPageTokens;
  const uint32_t stored = entry.sequence->stored_tokens[static_cast<size_t>(layer)];
  if (entry.first_position > first) {
    if (entry.sequence->IsOpen(layer, page)) {
      CopyOpenHead(OpenPageOf(entry), to, kv_head, stored - first);
    } else {  // a replay: the open page is, or is about to be, another one by now
      const int before = static_cast<int>(entry.first_position - first);
      ReopenPage(attention, kv_head, pool->Address(layer, entry.sequence->pages[page]), before, to);
    }
  }
  const uint32_t position = std::max(first, entry.first_position);
  const uint32_t end = std::min(first + kPageTokens, entry.end_position());
  AppendArgs args = RowArgs(entry, kv_head, position, end - position);
  args.open_page = &to;
  kernels.append(attention, args);
}

void HopWork::CloseChunkPage(const StepEntry& entry, uint32_t page, int kv_head, bool page_follows, int thread) const {
  const uint32_t end = (page + 1) * kPageTokens;
  if (end > entry.end_position() || end <= entry.write_from) return;  // not full yet, or closed already
  std::byte* const to = pool->Address(layer, entry.sequence->pages[page]);
  if (entry.first_position <= page * kPageTokens) {
    AppendArgs args = RowArgs(entry, kv_head, page * kPageTokens, kPageTokens, page_follows);
    args.page = to;
    kernels.append(attention, args);
    return;
  }
  const OpenPage open = OpenHead(thread);
  FillOpenHead(entry, page, kv_head, open);
  ClosePage(attention, kv_head, open, to);
}

// The chunks' last pages become their sequences' open ones.
void HopWork::KeepOpenPages(int thread, int threads) const {
  const std::span<const AppendRun> runs = plan->append_runs();
  for (size_t i = static_cast<size_t>(thread); i < runs.size() * shape.kv_heads; i += static_cast<size_t>(threads)) {
    const AppendRun& run = runs[i / shape.kv_heads];
    const StepEntry& entry = entries[run.entry];
    const bool last = (run.page_index + 1) * kPageTokens >= entry.end_position();
    if (entry.bad || !last || entry.write_from >= entry.end_position()) continue;
    const int kv_head = static_cast<int>(i % shape.kv_heads);
    const OpenPage from = OpenHead(thread), to = OpenPageOf(entry);
    FillOpenHead(entry, run.page_index, kv_head, from);
    CopyOpenHead(from, to, kv_head, entry.end_position() - run.page_index * kPageTokens);
  }
}

// The pieces of so many tokens.
void HopWork::CopyOpenHead(const OpenPage& from, const OpenPage& to, int kv_head, uint32_t tokens) const {
  const auto head = static_cast<size_t>(kv_head);
  for (uint32_t i = 0; i * kOpenPieceTokens < tokens; ++i) {
    std::memcpy(to.pieces[i] + head * to.head_stride_bytes, from.pieces[i] + head * from.head_stride_bytes,
                OpenPieceBytes(attention));
  }
}

}  // namespace fastdecode
