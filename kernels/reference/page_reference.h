#ifndef FASTDECODE_KERNELS_REFERENCE_PAGE_REFERENCE_H_
#define FASTDECODE_KERNELS_REFERENCE_PAGE_REFERENCE_H_

#include "kernels/attention.h"

namespace fastdecode {

// Appending to and closing pages as cpu/attention_page.h says it, one element at a time: the bits that the kernels must
// write.
void ReferenceAppendToPage(const AttentionShape& shape, const AppendArgs& args);
void ReferenceClosePage(const AttentionShape& shape, int kv_head, const OpenPage& open, std::byte* page);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_REFERENCE_PAGE_REFERENCE_H_
