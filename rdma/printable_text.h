#ifndef FASTDECODE_RDMA_PRINTABLE_TEXT_H_
#define FASTDECODE_RDMA_PRINTABLE_TEXT_H_

#include <string>

namespace fastdecode {

// A peer's words, fit for a log or a terminal: control characters, which could drive one, are replaced. Bytes from 0x80
// on stay, since they may be UTF-8. Never empty.
std::string PrintableText(std::string text);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_PRINTABLE_TEXT_H_
