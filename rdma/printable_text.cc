#include "rdma/printable_text.h"

namespace fastdecode {

std::string PrintableText(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text.empty() ? "(no reason given)" : text;
}

}  // namespace fastdecode
