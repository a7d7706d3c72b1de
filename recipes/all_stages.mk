# The chain: every part that the weights that ship are made of, from nothing.
# Command:  make -f recipes/all_stages.mk              a night or two on 2 CPU cores (not run to its end yet)
#           make -f recipes/all_stages.mk SIZE=tiny    minutes: the same parts on a handful of clips, for a test
#           make -f recipes/all_stages.mk 1_t2v        that part, and what it needs
#           make -f recipes/all_stages.mk -n           shows what would run
# Leaves:   the folder WORK (runs/all_stages, or runs/all_stages_tiny) with all shards and runs; in it
#           times.csv, a row for each part, and assets/, laid out like src/avatar_v/assets
# Resume:   the same command: what is there is not made again, and a training goes on from its last
#           checkpoint; the critics keep none. Ctrl-C and SIGTERM end the part that runs. To make a
#           part anew, remove what it left, and what was made of that.
# A stage:  is one line, train NAME DATA OPTIONS; the paths in these are what it needs. Commands run in
#           WORK, so nothing that ships is read.

SIZE ?= small
$(if $(filter small tiny,$(SIZE)),,$(error SIZE is small or tiny, got $(SIZE)))
is_tiny := $(filter tiny,$(SIZE))
WORK ?= runs/all_stages$(if $(is_tiny),_tiny)
WORKERS ?= 2# processes that draw; their number changes no bytes
RECIPES := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
W := $(WORK)/
runs := runs$(if $(is_tiny),/tiny)
side := $(if $(is_tiny),32,64)
vae := $(runs)/0_vae_decoder/vae
comma := ,

.NOTPARALLEL:# a part takes all cores
.DEFAULT_GOAL := assemble

# Shards and latents grow in their folders; there the mark .made says that all are there.
mark = $W$1$(if $(filter %/train %/validation,$1),/.made)
paths = $(sort $(filter runs/% shards/% voices/%,$(subst =, ,$(subst [, ,$(subst ], ,$(subst $(comma), ,$1))))))

# NAME LEAVES NEEDS COMMAND. The lock is held by a part that outlives make, as after `kill -9`.
define part
.PHONY: $1
$1: $(call mark,$2)
$(call mark,$2): | $Wtimes.csv $(foreach path,$(call paths,$3),$(call mark,$(path)))
	cd $W && date +%s > .begun && exec flock -Fn .running $4
	@cd $W && ls -d $2 > /dev/null && touch $(patsubst $W%,%,$(call mark,$2)) && echo \
	  "$1,$$$$(date -u +%FT%TZ),$$$$(($$$$(date +%s) - $$$$(cat .begun)))" >> times.csv
endef
$Wtimes.csv:
	mkdir -p $W && echo part,ended_at,took_s > $@

# FOLDER SPLIT CLIPS FRAMES OPTIONS: shards of drawn people
define draw_part
$(call part,draw_$(subst /,_,$1_$2),$1/$2,,avatar-v-data world --workers $(WORKERS) --out $1/$2 --split $2 \
  --clips $(if $(is_tiny),8,$3) --frames $(if $(and $(is_tiny),$(filter 401 81 49,$4)),33,$4) --size $(side) $5)
endef
draw = $(eval $(call draw_part,$1,$2,$3,$4,$5))

# NAME OPTIONS: the latents of runs/shards/NAME, both splits
define encode_part
$(call part,encode_$1,runs/latents/$1/train,runs/shards/$1/train runs/shards/$1/validation $(vae),\
  avatar-v shards encode --shards runs/shards/$1 --out runs/latents/$1 --vae $(vae) --drop-video $2)
$Wruns/latents/$1/validation/.made: | $Wruns/latents/$1/train/.made ;
endef
encode = $(eval $(call encode_part,$1,$2))

# RECIPE LEAVES NEEDS OPTIONS
define run_part
$(call part,$1,$2,$3,avatar-v run $(RECIPES)/$1.yaml $4 \
  $$(if $$(wildcard $W$(runs)/$1/checkpoints/*.ckpt),--ckpt_path last))
endef

# RECIPE DATA OPTIONS
validation = $(if $(findstring validation,$2),,--data.init_args.validation $1/validation)
train = $(eval $(call run_part,$1,$(runs)/$1/$(if $(findstring vae,$1)$(findstring decoder,$1),vae,weights),\
  $2/train $(if $(findstring /validation,$3),,$2/validation) $3,$(RECIPES)/$(SIZE).yaml --data.init_args.train \
  $2/train $(call validation,$2,$3) $(if $(findstring latents,$2),--data.init_args.decode_video false) $3))
from = --model.init_args.models.init_from=$(runs)/$1/weights

# NAME TRAIN VALIDATION OPTIONS
critic = $(eval $(call part,critic_$1,runs/critic_$1/$1,$2 $3 $4,avatar-v run $(RECIPES)/critic_$1.yaml \
  --data.init_args.train '[$2]' --data.init_args.validation '[$3]' $4))

ifdef is_tiny
few := --trainer.max_steps 2 --data.init_args.batches_per_epoch 2
few_pairs := $(few) --data.init_args.persons_per_batch 2 --data.init_args.scenes_per_person 2
few_faces := $(few) --data.init_args.train_persons 2 --data.init_args.validation_persons 2
few_windows := $(few) --data.init_args.clips_per_batch 2 --data.init_args.windows_per_clip 8 \
  --data.init_args.num_frames 13
stills := --model.init_args.personality.stills_share 1.0
few_sounds := --trainer.max_steps 2 --data.init_args.batches_per_epoch 2 --data.init_args.batch_size 2 \
  --model.init_args.optim.num_warmup_steps 1 --model.init_args.codec '{num_codebooks: 3$(comma) codebook_size: 16}'
few_trained := --trainer.max_steps=2 --trainer.per_device_train_batch_size=2 --trainer.warmup_steps=1
few_words := $(few_trained) --trainer.eval_steps=2 --model '{width: 32$(comma) num_layers: 1$(comma) num_heads: 2}'
few_speeches := $(few_trained) --trainer.max_steps=1 --trainer.num_generations=2
terms := --model.init_args.perceptual.identity '{0: 0.05}' --model.init_args.perceptual.motion '{0: 0.05}' \
  --model.init_args.perceptual.sync '{0: 0.05}'
of_student := --model.init_args.exploration.sampler student --model.init_args.exploration.num_steps 2 \
  --model.init_args.exploration.window 1 --model.init_args.exploration.shift 1.0 \
  --model.init_args.guidance.motion 1.0
endif

# the video VAE, and its decoder once more
$(call draw,shards/vae,train,1600,25,--clips-per-person 2 --seed 7)
$(call draw,shards/vae,validation,32,25,--clips-per-person 2)
$(call draw,shards/decoder,train,2400,25,--clips-per-person 2 --seed 11)
$(call train,0_vae,shards/vae)
$(call train,0_vae_decoder,shards/decoder,--data.init_args.validation shards/vae/validation \
  --model.init_args.init_from $(runs)/0_vae/vae)

# stages 1 and 2
$(call draw,runs/shards/short,train,960,81)
$(call draw,runs/shards/short,validation,48,81)
$(call encode,short)
$(call train,1_t2v,runs/latents/short,--model.init_args.models.vae $(vae) \
  --model.init_args.objective.resolution '{0: 1.0}')
$(call train,2_a2v,runs/latents/short,$(call from,1_t2v))

# the critics that stage 3 is trained against
$(call draw,runs/shards/critic,train,6400,13,--clips-per-person 2 --seed 21)
$(call draw,runs/shards/critic,validation,128,25)
$(call draw,runs/shards/face,train,1536,81,--clips-per-shard 48)
$(call encode,critic)
$(call critic,face,runs/shards/face/train,runs/shards/critic/validation,$(few_pairs))
$(call critic,motion,runs/shards/critic/train$(comma)runs/latents/critic/train,runs/shards/critic/validation,\
  --data.init_args.vae $(vae) $(few_pairs))
$(call critic,sync,runs/shards/short/train,runs/shards/critic/validation,$(few_windows))

# what reads the motion of a reference
$(eval $(call part,critic_reader,runs/critic_reader/reader,,avatar-v run $(RECIPES)/critic_reader.yaml $(few_faces)))

# stage 3: pictures, personality, motion, listening
$(call draw,runs/shards/images,train,6000,5,--seed 21)
$(call draw,runs/shards/images,validation,120,5,--clips-per-person 2)
$(call encode,images,--stills)
$(call draw,runs/shards/long,train,960,401,--clips-per-person 2)
$(call draw,runs/shards/long,validation,48,401,--clips-per-person 2)
$(call encode,long,--stills)
$(eval $(call part,stats,runs/shards/motion.json,runs/shards/long/train,\
  avatar-v shards stats runs/shards/long/train --out runs/shards/motion.json))
$(call train,3_pictures,runs/latents/images,$(call from,2_a2v) \
  --model.init_args.models.motion_stats runs/shards/motion.json $(stills))
$(call train,3_sft,runs/latents/long,$(call from,3_pictures) $(stills) $(terms) \
  --model.init_args.perceptual.face_critic runs/critic_face/face \
  --model.init_args.perceptual.motion_meter runs/critic_motion/motion \
  --model.init_args.perceptual.sync_critic runs/critic_sync/sync)
$(call draw,runs/shards/motion,train,3000,401,--clips-per-person 2 --motion-only --seed 41)
$(call draw,runs/shards/motion,validation,64,401,--clips-per-person 2 --motion-only)
$(call train,3_motion,runs/shards/motion,$(call from,3_sft))
$(call draw,runs/shards/dialogues,train,2000,401,--clips-per-person 2 --motion-only --dialogues --seed 43)
$(call draw,runs/shards/dialogues,validation,64,401,--clips-per-person 2 --motion-only --dialogues)
$(call train,3_listening,runs/shards/dialogues,$(call from,3_motion))

# stage 4
$(call train,4a_distill_cfg,runs/latents/long,$(call from,3_listening) $(stills))
$(call train,4b_distill_dmd,runs/latents/long,$(call from,4a_distill_cfg) $(stills))
$(call train,4c_distill_motion,runs/shards/motion,$(call from,4b_distill_dmd))
$(call train,4d_causal_forcing,runs/latents/long,$(call from,3_listening) $(stills))
$(call train,4e_self_forcing,runs/latents/long,$(call from,3_listening) $(stills) \
  --model.init_args.student.causal_weights $(runs)/4d_causal_forcing/weights)

# stage 5, of the student: pictures and motion
$(call draw,runs/shards/chunk,train,192,49)
$(call draw,runs/shards/chunk,validation,24,49)
$(call encode,chunk)
$(call train,5a_grpo_video,runs/latents/chunk,$(call from,4b_distill_dmd))
$(call train,5a_grpo,runs/shards/motion,$(call from,4c_distill_motion) $(of_student))

# the refiner, of twice the size
side := $(if $(is_tiny),64,128)
$(call draw,runs/shards/refiner,train,2400,17,--clips-per-person 2 --seed 3)
$(call draw,runs/shards/refiner,validation,64,17,--clips-per-person 2 --seed 3)
$(call encode,refiner,--low --bf16)
$(call train,refiner,runs/latents/refiner,$(call from,3_sft))
$(call train,refiner_adversarial,runs/latents/refiner,$(call from,refiner))
$(call train,refiner_decoder,runs/shards/refiner,--model.init_args.init_from $(vae))

# the voice: a codec, its decoder, the language model and its alignment, in folders that their recipes name
voices = avatar-v-data voices --workers $(WORKERS) --out voices/$1 $(if $(is_tiny),--sentences 3,$2) --voices \
  $(if $(is_tiny),2,$3)
$(eval $(call part,voices_train,voices/train,,sh -c '$(call voices,train,,240) && $(call voices,train,--first 240 \
  --emotions 0.6,40) && $(call voices,train,--first 280 --languages de es it --emotions 0.25,80)'))
$(eval $(call part,voices_validation,voices/validation,,$(call voices,validation,--sentences 10,20) --split validation))
# RECIPE LEAVES NEEDS OPTIONS
define voice_part
$(call part,voice_$1,runs/voice_$1/$2,$3,avatar-v run $(RECIPES)/voices/$1.yaml $4 \
  $$(if $$(wildcard $Wruns/voice_$1/checkpoints/*),--ckpt_path last))
endef
$(eval $(call voice_part,codec,codec,voices/train voices/validation,$(few_sounds)))
$(eval $(call voice_part,codec_decoder,codec,runs/voice_codec/codec,$(few_sounds)))
$(eval $(call voice_part,sft,voice,runs/voice_codec_decoder/codec,$(few_words)))
$(eval $(call voice_part,grpo,voice,runs/voice_sft/voice,$(few_speeches)))

# what ships, laid out like src/avatar_v/assets; whole or not at all
critics := face motion sync reader
slim = cd $W && exec avatar-v weights slim $1 --out assets.part/$2 --error $3
.PHONY: assemble
assemble: $Wassets
$Wassets: | $(foreach name,3_listening 4b_distill_dmd 4e_self_forcing refiner,$W$(runs)/$(name)/weights) \
    $W$(runs)/refiner_decoder/vae $(foreach name,$(critics),$Wruns/critic_$(name)/$(name)) \
    $(foreach name,5a_grpo_video 5a_grpo refiner_adversarial,$(name)) $Wruns/voice_grpo/voice
	cd $W && rm -rf assets.part refiner.whole && mkdir -p assets.part/critics
	cd $W && exec avatar-v weights decoder $(runs)/refiner/weights $(runs)/refiner_decoder/vae --out refiner.whole
	cd $W && cp $(addprefix $(runs)/refiner/weights/,loss.csv recipe.yaml) refiner.whole
	$(call slim,$(runs)/3_listening/weights,small,dit=1.5e-3 vae=0 text=1.5e-3 audio=1.5e-3 motion=1.5e-3)
	$(call slim,$(runs)/4b_distill_dmd/weights,small_student,dit=2.5e-3 --base assets.part/small)
	$(call slim,$(runs)/4e_self_forcing/weights,small_causal,dit=2.5e-3 --base assets.part/small)
	$(call slim,refiner.whole,small_refiner,dit=6e-3 vae=6e-3 text=6e-3 audio=6e-3 --base assets.part/small)
	$(call slim,runs/voice_grpo/voice,voice,llama=8e-2 codec=5e-2)
	cd $W && cp -r $(foreach name,$(critics),runs/critic_$(name)/$(name)) assets.part/critics
	mv $Wassets.part $Wassets
