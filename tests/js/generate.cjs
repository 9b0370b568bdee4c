// node generate.cjs FOLDER CLASS DTYPE TEXT: load a folder in transformers.js, and print the tokens that it generates,
// or its hidden states.
const path = require("path");
const transformers = require("@huggingface/transformers");

async function main(folder, kind, dtype, text) {
  const { env, AutoTokenizer } = transformers;
  env.allowRemoteModels = false;
  env.localModelPath = path.dirname(folder);
  const name = path.basename(folder);
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const model = await transformers[kind].from_pretrained(name, { dtype });
  const inputs = await tokenizer(text);
  if (kind === "AutoModel") {
    const { last_hidden_state: found } = await model(inputs);
    console.log(JSON.stringify(Array.from(found.data)));
  } else {
    const found = await model.generate({ ...inputs, max_new_tokens: 12, min_new_tokens: 12 });
    console.log(JSON.stringify(found.tolist()[0].map(Number)));
  }
}

main(...process.argv.slice(2));
