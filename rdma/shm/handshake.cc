#include "rdma/shm/handshake.h"

#include <algorithm>
#include <cstring>

namespace fastdecode {

TextPacket MakeTextPacket(PacketKind kind, const std::string& text) {
  TextPacket packet;
  packet.prefix.kind = kind;
  packet.prefix.bytes = sizeof(packet);
  packet.text_bytes = static_cast<uint32_t>(std::min(text.size(), sizeof(packet.text)));
  std::memcpy(packet.text, text.data(), packet.text_bytes);
  return packet;
}

std::string ReadTextPacket(const void* packet, size_t bytes, PacketKind kind) {
  TextPacket copy;
  if (bytes != sizeof(copy)) return "";
  std::memcpy(&copy, packet, sizeof(copy));
  if (copy.prefix.magic != kHandshakeMagic || copy.prefix.kind != kind || copy.text_bytes > sizeof(copy.text))
    return "";
  std::string text(copy.text, copy.text_bytes);
  // Bytes from 0x80 on may be UTF-8; control characters could drive a terminal.
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text.empty() ? "(no reason given)" : text;
}

}  // namespace fastdecode
