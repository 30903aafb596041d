#include "rdma/shm/handshake.h"

#include <algorithm>
#include <cstring>

#include "rdma/printable_text.h"

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
  return PrintableText(std::string(copy.text, copy.text_bytes));
}

}  // namespace fastdecode
