"""Sizes of a GPT-2 that Hugging Face's transformers builds, on the text of Python's own help."""

from pydoc_data.topics import topics

import torch

import nas

try:
    from transformers import GPT2Config, GPT2LMHeadModel
except ModuleNotFoundError as error:
    raise ImportError(
        "gpt.py needs transformers. In the repository: pip install -c constraints.txt '.[transformers]'"
    ) from error

CONTEXT, BATCH = 32, 16  # symbols, windows


class Logits(torch.nn.Module):
    """The model with the interface of other networks, for the exported program."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, symbols):  # (batch, length)
        return self.model(input_ids=symbols, use_cache=False).logits


def build(point):  # with random weights
    config = GPT2Config(
        vocab_size=128, n_positions=CONTEXT, n_embd=point["heads"] * point["head_size"], n_layer=point["layers"],
        n_head=point["heads"], bos_token_id=0, eos_token_id=0, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # transformers does not see it in the name of this class, and would warn
    return model


class Gpt(nas.Problem):
    metrics = (nas.Metric("loss", "minimize"),)
    policies = frozenset({nas.Policy.SHARE_PARAMS, nas.Policy.EARLY_STOP})
    space = nas.ParameterSpace({"heads": nas.Choice(1, 2, 4), "head_size": nas.Choice(8, 16), "layers": nas.Int(1, 3)})

    def build(self, point):
        return build(point)

    def train(self, run):
        model, text = build(run.point), self.part(0)
        run.inherit(model)
        n_steps = run.epochs(full=300, early=60)
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, n_steps)
        model.train()
        for starts in torch.randint(len(text) - CONTEXT, (n_steps, BATCH, 1)):
            windows = text[starts + torch.arange(CONTEXT)]
            loss = model(input_ids=windows, labels=windows).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        run.save(model)
        return {"loss": self.loss(model, 1)}

    def part(self, index):  # 0: training, 1: validation, 2: test
        text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
        train, rest = torch.tensor(list(text)).tensor_split([len(text) * 4 // 5])
        return train if index == 0 else rest.chunk(2)[index - 1]

    @torch.no_grad()
    def loss(self, model, index):
        windows = self.part(index)[: 128 * CONTEXT].view(128, CONTEXT)
        return model.eval()(input_ids=windows, labels=windows).loss.item()

    def test(self, run):
        return {"loss": self.loss(run.restore(build(run.point)).cpu(), 2)}

    def export(self, run):
        return Logits(run.restore(build(run.point))).eval(), (self.part(1)[: 2 * CONTEXT].view(2, CONTEXT),)
