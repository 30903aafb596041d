#ifndef FASTDECODE_ENGINE_TEXT_SENTENCEPIECE_MODEL_H_
#define FASTDECODE_ENGINE_TEXT_SENTENCEPIECE_MODEL_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// Reads a SentencePiece model of type BPE, most often called tokenizer.model: a serialized ModelProto of
// sentencepiece_model.proto. `file` is only named in errors and in the result.
//
// Text without added tokens in it gets the ids that SentencePieceProcessor::Encode gives. SentencePiece merges whatever
// two neighbours make a piece, the highest score first. So a piece's merges are all its splits into two pieces, ordered
// by descending score, then by ids. Where pieces of the same score compete, SentencePiece takes the leftmost pair, and
// merges that are ranked take the lower id's; in Mistral's models, where only runs of spaces share a score, both arrive
// at the same tokens.
//
// Special tokens are as transformers' LlamaTokenizer makes them from such a file (SentencePieceExtractor in
// convert_slow_tokenizer.py), and not as in SentencePiece, which never finds <s> in a text: control pieces and the
// unknown one are special added tokens, user-defined pieces are added tokens that are not special, all found in the
// text as given, before anything else; only user-defined pieces with a space in them are looked for once spaces are
// replaced, as in SentencePiece. The dummy prefix goes before the start of the whole text, and not after an added
// token, as with LlamaTokenizer's legacy=false. Unlike SentencePiece's, it does not go before a text that begins with a
// user-defined piece. A model with remove_extra_whitespaces is an exception: there, each stretch between added tokens
// loses its extra spaces and gets the dummy prefix, as with legacy=true.
//
// Where LlamaTokenizer of transformers 5.24 differs from SentencePiece otherwise, SentencePiece is followed: it puts no
// dummy prefix before a text that begins with a space, and orders merges by ids and not by scores, so that runs of
// spaces become other tokens.
//
// bos goes before an encoded text, the documented default of LlamaTokenizer and GemmaTokenizer; a tokenizer_config.json
// may say otherwise.
//
// Errors: InvalidArgument for what is no such file or what SentencePiece would refuse, with the field and its value;
// Unimplemented for other types of model, and for normalization by a table of characters.
// Bounded: time and memory grow with the file's size, and merges are at most 2^24.
absl::StatusOr<TokenizerSpec> ParseSentencePieceModel(std::string_view bytes, const std::string& file);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_SENTENCEPIECE_MODEL_H_
