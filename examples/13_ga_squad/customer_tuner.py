"""The tuner of NNI's ga_squad with weight sharing, written for NNI."""

import os
import random
from threading import Event, Lock

from graph import first_graph, mutated, shared_layers
from nni.tuner import Tuner


class Individual:
    def __init__(self, graph, indiv_id, parent_id=None, shared_id=None):
        self.graph = graph
        self.indiv_id = indiv_id
        self.parent_id = parent_id
        self.shared_id = shared_id
        self.result = None


class CustomerTuner(Tuner):
    def __init__(self, optimize_mode, save_dir_root, population_size=32, graph_max_layer=6, graph_min_layer=3):
        self.sign = 1 if optimize_mode == "maximize" else -1
        self.save_dir_root = save_dir_root
        self.limits = (graph_min_layer, graph_max_layer)
        self.rng = random.Random(0)
        self.lock = Lock()
        self.events = {}
        self.n_individuals = 0
        self.sent = {}
        self.population = [
            self.new_individual(mutated(first_graph(), self.limits, self.rng)) for _ in range(population_size)
        ]

    def new_individual(self, graph, parent=None):
        indiv_id = self.n_individuals
        self.n_individuals += 1
        self.events[indiv_id] = Event()
        if parent is None:
            return Individual(graph, indiv_id)
        return Individual(graph, indiv_id, parent.indiv_id, shared_layers(parent.graph, graph))

    def save_dir(self, indiv_id):
        return None if indiv_id is None else os.path.join(self.save_dir_root, str(indiv_id))

    def generate_parameters(self, parameter_id):
        with self.lock:
            waiting = [one for one in self.population if one.result is None]
            indiv = waiting[0] if waiting else self.child()
            if waiting:
                self.population.remove(indiv)
            self.sent[parameter_id] = indiv
        if indiv.parent_id is not None:
            self.events[indiv.parent_id].wait()
        return {
            "graph": indiv.graph,
            "restore_dir": self.save_dir(indiv.parent_id),
            "save_dir": self.save_dir(indiv.indiv_id),
            "shared_id": indiv.shared_id,
        }

    def child(self):
        """Removes the loser of a tournament of two, and returns a child of the winner."""
        if len(self.population) < 2:  # other trials failed
            return self.new_individual(mutated(first_graph(), self.limits, self.rng))
        pair = self.rng.sample(self.population, 2)
        pair.sort(key=lambda one: one.result)
        self.population.remove(pair[0])
        return self.new_individual(mutated(pair[1].graph, self.limits, self.rng), pair[1])

    def receive_trial_result(self, parameter_id, parameters, reward):
        with self.lock:
            indiv = self.sent[parameter_id]
            indiv.result = self.sign * float(reward)
            self.population.append(indiv)
            self.events[indiv.indiv_id].set()

    def update_search_space(self, search_space):
        pass
