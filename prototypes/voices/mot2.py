"""mot.py ARM SEED STEPS [enc]: fine-tune the shipped motion network, read on real and drawn clips"""
import sys,time,math,os,torch,numpy as np
from avatar_v.weights.weights import load_pipeline
from avatar_v.media.sound import prepared
from avatar_v.motion.vectors import unpack_motion
from avatar_v.sampling.motion_rollout import roll_motion
from avatar_v.sampling.settings import Settings
from avatar_v.generate.generator import audio_tokens
from avatar_v.training.windows import draw_windows
from avatar_v.training.batch import noise_like
from avatar_v.losses.flow import motion_flow_loss
from avatar_v.motion.vectors import component_weights
from avatar_v.models.conditioner import latent_validity
from avatar_v.flow import shift_time
from avatar_v.types import MotionCond, MOTION_NAMES
torch.set_num_threads(1)
arm,seed,steps=sys.argv[1],int(sys.argv[2]),int(sys.argv[3]); enc='enc' in sys.argv; noevalval='noval' in sys.argv
_,C=load_pipeline('/work/wt/voices/src/avatar_v/assets/small'); C.float(); net=C.motion_net.float(); del _
torch.manual_seed(seed); t0=time.process_time()
def load(p,sl):
    d=torch.load(p); a=d['audio'][sl]; return torch.stack([prepared(x.float()/32768) for x in a]), d['motion'][sl]
if steps:
    sets={'synth':[('synth.pt',slice(0,400)),('synth2.pt',slice(0,800))],'half':[('synth.pt',slice(0,400)),('synth2.pt',slice(0,200)),('recorded2.pt',slice(0,400)),('recorded.pt',slice(0,200))]}[arm]
    parts=[load(*s) for s in sets]; A=torch.cat([p[0] for p in parts]); M=torch.cat([p[1] for p in parts])
    with torch.no_grad():
        P=C.pack_motion(M)
        if not enc: T=torch.cat([C.encode_audio(a) for a in A.split(16)]).half()
    print('data',len(A),'cpu',time.process_time()-t0,flush=True)
    params=list(net.parameters())+(list(C.audio_encoder.parameters()) if enc else [])
    for p in params: p.requires_grad_(True)
    LR=5e-4; opt=torch.optim.AdamW(params,lr=LR,weight_decay=.01,betas=(.9,.95)); g=torch.Generator().manual_seed(seed)
    W=component_weights({'mouth_open':2.0,'eye_open':6.0,'yaw':2.0}); B=24 if enc else 64; L=13; avg=None
    for i in range(steps):
        for q in opt.param_groups: q['lr']=LR*min(1,(i+1)/30)*(.03+.97*.5*(1+math.cos(math.pi*i/steps)))
        idx=torch.randint(len(A),(B,),generator=g); w=draw_windows(B,P.shape[1],L,first_share=.3,image_share=.8,suffix_share=.05,generator=g)
        clean=w.crop(P[idx])
        if enc:
            toks=[]
            for k,s in zip(idx.tolist(),w.start.tolist()):
                lo=max(0,s-6); n=min(P.shape[1]-1,s+L); t=C.encode_audio(A[k][None,lo*4*640:(4*n+1)*640])[:, s-lo:s-lo+L]; toks.append(t)
            audio=torch.cat(toks)
        else: audio=w.crop(T[idx]).float()
        keep=torch.rand(B,generator=g)>=.1; scored=w.scored()
        times=torch.where(scored,shift_time(torch.rand(B,1,generator=g),3.0),torch.zeros(()))
        eps=noise_like(clean,g); tt=times[...,None]; xt=(1-tt)*clean+tt*eps
        v=net(xt,times,MotionCond(audio=audio,audio_keep=keep))
        loss=motion_flow_loss(v,eps-clean,scored,W.expand(B,-1)); opt.zero_grad(); loss.backward(); torch.nn.utils.clip_grad_norm_(params,1.0); opt.step()
        avg=float(loss) if avg is None else .97*avg+.03*float(loss)
        if i in (0,20) or i%100==99: print(i,'%.4f cpu %.0f'%(avg,time.process_time()-t0),flush=True)
def r(a,b):
    a=a-a.mean();b=b-b.mean();return float((a*b).sum()/(a.norm()*b.norm()+1e-9))
S=Settings(chunk_latents=13,guidance_audio=1.0,guidance_motion=1.0,shift=3.0)
@torch.inference_mode()
def roll(audios,firsts,n,seeds=1):
    pr=[audio_tokens(C,prepared(a),plan_l(n)) for a in audios]
    return unpack_motion(roll_motion(net,S,C.pack_motion(firsts),lambda s: torch.cat([p(s) for p in pr]),None,n,[torch.Generator().manual_seed(1000*seeds+i) for i in range(len(audios))]),C.known_stats)
from avatar_v.sampling.chunks import plan
def plan_l(n): return plan(n,chunk_latents=13).num_latents
real=torch.load('real_audio.pt'); res={'arm':arm,'seed':seed,'steps':steps,'enc':enc,'real':{}}
K=8
for k,d in real.items():
    n=len(d['motion']); n4=n-(n-1)%4; a=d['audio'][:n4*640]; m=d['motion'][:n4]
    o=torch.cat([roll([a]*K,m[None,:1].repeat(K,1,1),n4)])[:,:n4,0]
    res['real'][k]={s:float(np.mean([r(q[max(1,s):n4+min(0,s)],m[max(1,s)-s:n4-max(0,s) if s>0 else n4,0]) for q in o])) for s in range(-6,7)}
    res['real'][k]['mean']={s:r(o.mean(0)[max(1,s):n4+min(0,s)],m[max(1,s)-s:n4-max(0,s) if s>0 else n4,0]) for s in range(-6,7)}
for v in ('synth','rec'):
    d=torch.load(f'{v}_val.pt'); a=d['audio'][:24].float()/32768; m=d['motion'][:24]
    o=roll(list(a),m[:,:1],201)[:,:201,0]; res['val_'+v]=[r(o[i,1:],m[i,1:,0]) for i in range(len(m))]
torch.save(res,f'mot2_{arm}_{seed}_{steps}{"_enc" if enc else ""}.pt')
rows=res['real']; best=max(range(-6,7),key=lambda s:np.mean([v[s] for v in rows.values()]))
print(arm,seed,steps,'enc' if enc else '','cpu %.0f val synth %.3f rec %.3f | shift %d r %.3f mean-of-8 %.3f | at 0 %.3f |'%(time.process_time()-t0,np.mean(res['val_synth']),np.mean(res['val_rec']),best,np.mean([v[best] for v in rows.values()]),np.mean([v['mean'][best] for v in rows.values()]),np.mean([v[0] for v in rows.values()])),' '.join('%s %.2f'%(k[-3:],v[best]) for k,v in rows.items()),flush=True)
