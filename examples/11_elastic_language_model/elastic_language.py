from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import nas

CONTEXT, BATCH, N_SYMBOLS = 32, 16, 128  # symbols, windows, ASCII


class LanguageModel(nn.Module):  # each size is a decision; a subnet has torch's own layers
    def __init__(self):
        super().__init__()
        heads, head_size = nas.Elastic("heads", (1, 2, 4)), nas.Elastic("head_size", (8, 16))
        depth, mlp_ratio = nas.Elastic("depth", (1, 2, 3)), nas.Elastic("mlp_ratio", (2, 4))
        width, hidden = nas.ElasticProduct((heads, head_size)), nas.ElasticProduct((heads, head_size, mlp_ratio))
        self.embed, self.positions = nas.ElasticEmbedding(N_SYMBOLS, width), nas.ElasticEmbedding(CONTEXT, width)
        options = {"dropout": 0.0, "activation": "gelu", "norm_first": True}
        blocks = [nas.ElasticTransformerEncoderLayer(width, heads, hidden, **options) for _ in range(depth.largest)]
        self.layers = nas.ElasticModuleList(depth, blocks)
        self.norm, self.head = nas.ElasticLayerNorm(width), nas.ElasticLinear(width, N_SYMBOLS, bias=False)
        self.head.weight = self.embed.weight
        for embedding in (self.embed, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, symbols):  # (batch, length)
        length = symbols.shape[1]
        x = self.embed(symbols) + self.positions(torch.arange(length, device=symbols.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, symbols.device)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))  # (batch, length, N_SYMBOLS)


def loss(outputs, targets):
    return cross_entropy(outputs.flatten(0, 1), targets.flatten())


EMPTY = LanguageModel()


class ElasticLanguage(nas.Problem):
    metrics = (nas.Metric("loss", "minimize"),)
    policies = frozenset({nas.Policy.SHARE_PARAMS, nas.Policy.SKIP_TRAIN, nas.Policy.EARLY_STOP})
    space = nas.SupernetSpace(nas.space_of(EMPTY))

    def build(self, run):
        network = LanguageModel()
        return network if nas.epoch_of(run.point) is not None else nas.subnet(network, run.point)

    def static_metrics(self, point):  # known before training, for +constraints.parameters
        is_epoch = nas.epoch_of(point) is not None
        return {"parameters": 0 if is_epoch else sum(p.numel() for p in nas.subnet(EMPTY, point).parameters())}

    def train(self, run):
        network, text, points, paths = self.build(run), self.part(0), [run.point], nas.ListedPaths([run.point])
        if nas.epoch_of(run.point) is not None:  # largest, smallest and a random one learn; both ends are the score
            points = largest, smallest = nas.extremes(network)
            paths = nas.SandwichPaths(space=self.space, seed=run.seed, largest=largest, smallest=smallest, n_random=1)
        run.inherit(network, rules=nas.Rules(rest="own"))  # all weights of the newest supernet epoch
        n_steps = run.epochs(full=600 if nas.epoch_of(run.point) is None else 200, early=200)
        optimizer = torch.optim.AdamW(network.parameters(), 3e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, max(1, n_steps))
        starts = torch.randint(len(text) - CONTEXT - 1, (n_steps, BATCH, 1))
        windows = (text[own + torch.arange(CONTEXT + 1)] for own in starts)
        settings = nas.PathTraining(loss=loss, distill=True, class_dim=-1)
        batches = ((own[:, :-1], own[:, 1:]) for own in windows)
        nas.train_epoch(network, batches, optimizer, paths, settings=settings, after_step=schedule.step)
        run.save(network)
        return nas.panel_score(network, points, [self.scored(1)], measures={"loss": loss})

    def part(self, index):  # 0: training, 1: validation, 2: test
        text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
        train, rest = torch.tensor(list(text)).tensor_split([len(text) * 4 // 5])
        return train if index == 0 else rest.chunk(2)[index - 1]

    def scored(self, index):
        windows = self.part(index)[: 256 * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT)
        return windows[:, :-1], windows[:, 1:]

    def test(self, run):
        network = run.restore(self.build(run)).cpu()
        return nas.panel_score(network, [run.point], [self.scored(2)], measures={"loss": loss})

    def export(self, run):
        return run.restore(self.build(run)).cpu(), (self.scored(1)[0][:2],)
